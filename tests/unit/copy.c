/* copy_nontemporal() writes what memcpy() writes, and nothing beside it, wherever the two
 * buffers begin in a line. */
#include "tests/support/tap.h"

#include "base/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 64
#define ROOM 1200
#define POISON 0xa5

static unsigned char src[ROOM], dst[ROOM], want[ROOM];

static int wrong(size_t to, size_t from, size_t bytes)
{
	memset(dst, POISON, ROOM);
	memset(want, POISON, ROOM);
	memcpy(want + to, src + from, bytes);
	copy_nontemporal(dst + to, src + from, bytes);
	return memcmp(dst, want, ROOM) != 0;
}

int main(void)
{
	int bad = 0;
	srandom((unsigned)getpid());
	printf("# seed %d\n", (int)getpid());
	for (size_t i = 0; i < ROOM; i++)
		src[i] = (unsigned char)random();
	for (size_t to = 0; to < LINE; to++)
		for (size_t from = 0; from < LINE; from += 7)
			for (size_t bytes = 0; bytes <= 4 * LINE + 3; bytes++)
				bad += wrong(to, from, bytes);
	is_int(bad, 0, "copies of 0 to %d bytes from and to any place in a line that differ", 4 * LINE + 3);
	bad = 0;
	for (int i = 0; i < 1000; i++)
		bad += wrong((size_t)random() % LINE, (size_t)random() % LINE, (size_t)random() % (ROOM - LINE));
	is_int(bad, 0, "copies of random length that differ");
	return done_testing();
}
