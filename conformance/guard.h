/* Memory for plugins under test: every buffer ends at a page that cannot be
 * touched, its pages follow another such, begins poisoned, and can be write-protected or shut altogether. What
 * there is is known by address, so that a stray access can be told by the name of
 * the buffer. One thread makes and frees buffers. */
#ifndef CONFORMANCE_GUARD_H
#define CONFORMANCE_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct guarded {
	char *map;
	size_t span; /* writable pages; one more stands before them and one behind */
	char *data;
	size_t bytes;
	uint32_t slot;
} guarded;

/* A buffer allows this now. */
typedef enum guard_access { GUARD_OPEN = 0, GUARD_READ, GUARD_SHUT } guard_access;

/* Makes a buffer; `what` names it in messages and must live as long. Ends the program when there is no memory. */
guarded guard(const char *what, size_t bytes, size_t align);
/* Changes, with this number, what memory holds that nobody has written to. */
void guard_turn(unsigned turn);
/* Returns true when the bytes before it and the few between its end and the guard page are as they were. */
bool guard_intact(const guarded *g);
void guard_lock(const guarded *g, int read_only);
/* While it is set short buffers are opened and shut by no call of the kernel: guard_lock() does nothing, and what
 * was freed stays open. Walls stay where they are. It is changed while all buffers allow what they did when they
 * were made. */
extern bool guard_light;
void guard_free(guarded *g);

/* The buffer is memory of the fenced device: see guard_fence(). */
void guard_to_device(const guarded *g);
/* Shuts all device buffers, or opens them again for an operator. */
void guard_fence(int shut);

typedef struct guard_hit {
	const char *what;
	guard_access access;
	int device;
	size_t bytes;
	ptrdiff_t offset; /* distance of the address from the first byte */
	bool before;      /* in the page before */
} guard_hit;
/* Finds the buffer, its guard page included, that an address belongs to; false: it lies in none. Safe in a signal
 * handler. */
bool guard_find(const void *address, guard_hit *hit);

#endif
