/* A message that a channel sends to several ranks of its node at once is copied once, into a buffer that all of
 * them read. It has MULTICAST_SLOTS slots, used in turn: piece p is in slot p % MULTICAST_SLOTS. A slot is filled
 * again when all receivers have read it. The layout is in doc/dev/wire-format.md.
 *
 * Used on the thread that uses the channel. */
#ifndef TRANSPORT_SHM_MULTICAST_H
#define TRANSPORT_SHM_MULTICAST_H

#include <stddef.h>
#include <stdint.h>

#define MULTICAST_SLOT (64u << 10)
#define MULTICAST_SLOTS 16u
#define MULTICAST_BYTES ((size_t)MULTICAST_SLOT * MULTICAST_SLOTS)
/* Shorter messages are copied once for each receiver, which then needs one look less. */
#define MULTICAST_LEAST (32u << 10)

typedef struct multicast {
	int fd;
	unsigned char *mem;
	uint64_t reserved, copied;        /* pieces: those of all multicasts posted, and those in the buffer so far */
	int unannounced[MULTICAST_SLOTS]; /* receivers that have not been told of the slot's piece */
} multicast;

/* NULL: no memory. */
multicast *multicast_create(void);
void multicast_free(multicast *s);

/* Returns the number of the first piece of a message. */
uint64_t multicast_reserve(multicast *s, size_t bytes);
/* Maps a peer's buffer, to be read; closes the descriptor. NULL: it is none, or there is no memory. */
const unsigned char *multicast_map(int fd);
void multicast_unmap(const unsigned char *mem);

#endif
