/* Messages of the control tree, as in doc/dev/wire-format.md. */
#ifndef TRANSPORT_WIRE_CTRL_MSG_H
#define TRANSPORT_WIRE_CTRL_MSG_H

#include "transport/wire/record_crypto.h"

#define CTRL_MSG_BYTES 16
#define CTRL_MSG_TEXT 400 /* bytes of text at most */
#define CTRL_MSG_MAX (CTRL_MSG_BYTES + CTRL_MSG_TEXT + RECORD_OVERHEAD)

/* RATES go up and RATED comes down: Mbit/s of each of the job's networks, 4 bytes each in place of text. TALLY goes up to
 * rank 0: what rank a has counted, in place of text; b is 1 when it is the last of that rank. */
enum { CTRL_HEARTBEAT = 1, CTRL_FAIL, CTRL_LEAVE, CTRL_LEFT, CTRL_RATES, CTRL_RATED, CTRL_TALLY };

typedef struct ctrl_msg {
	int type, a, b;
	const char *text; /* not terminated; points into what was read */
	size_t bytes;
} ctrl_msg;

/* Writes one to out[CTRL_MSG_MAX], as a record where `crypto` is given; returns its bytes. */
size_t ctrl_msg_write(unsigned char *out, const ctrl_msg *f, record_crypto *crypto);
/* Reads the first message of in[have]; a record is opened in place. Returns the bytes
 * it took, 0 when it is not whole yet, CTRL_MSG_BAD or CTRL_MSG_ALTERED. */
#define CTRL_MSG_BAD (-1)
#define CTRL_MSG_ALTERED (-2)
int ctrl_msg_read(unsigned char *in, size_t have, record_crypto *crypto, ctrl_msg *f);

#endif
