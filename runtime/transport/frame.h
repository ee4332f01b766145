/* Frames of the control tree, as doc/wire-format.md has them. */
#ifndef FRAME_H
#define FRAME_H

#include "seal.h"

#define FRAME_BYTES 16
#define FRAME_TEXT 400 /* bytes of text at most */
#define FRAME_MOST (FRAME_BYTES + FRAME_TEXT + SEAL_EXTRA)

enum { FRAME_HEARTBEAT = 1, FRAME_FAIL, FRAME_LEAVE, FRAME_LEFT };

typedef struct frame {
	int type, a, b;
	const char *text; /* not terminated; in the bytes that were read */
	size_t bytes;
} frame;

/* Writes one to out[FRAME_MOST], sealed where `seal` is given; returns its bytes. */
size_t frame_write(unsigned char *out, const frame *f, seals *seal);
/* Reads the first of the `have` bytes that have come; opens it in place. Returns the
 * bytes it took, 0 when it is not whole yet, FRAME_BAD or FRAME_ALTERED. */
#define FRAME_BAD (-1)
#define FRAME_ALTERED (-2)
int frame_read(unsigned char *in, size_t have, seals *seal, frame *f);

#endif
