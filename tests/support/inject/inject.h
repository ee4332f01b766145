/* Faults on purpose: a test program linked with these files (the Makefile does it for
 * tests/unit/inject_*) has the system calls of the transport and every allocation of
 * libgradcomp go through here (ld --wrap), where they fail as told:
 *
 *     GRADCOMP_INJECT="seed=7;short=30;eagain=20;eintr=10;delay=5;delay_us=200"
 *
 *   short=P    percent of reads and writes that move only a part
 *   eagain=P   percent of reads, writes and accepts that find nothing to do
 *   eintr=P    percent of reads, writes, connects and polls that a signal interrupts
 *   delay=P    percent of calls that come delay_us=N microseconds late
 *   reset=N    the Nth read or write finds its connection gone, for both ends
 *   alloc=N    the Nth allocation fails: memory, a mapping, a descriptor, a thread
 *   seed=N     of what percentages choose: the k-th call of a kind on a thread always
 *              has the same fate under the same seed
 *
 * What libc allocates by itself is not counted. */
#ifndef TESTS_SUPPORT_INJECT_INJECT_H
#define TESTS_SUPPORT_INJECT_INJECT_H

typedef struct inject_counts {
	unsigned long allocations; /* tried while faults were on */
	unsigned long calls;       /* reads and writes, likewise */
	unsigned long faults;      /* made */
	unsigned long live;        /* allocations made while faults were on, and not freed yet */
} inject_counts;

/* Takes up a text like the above and forgets all counts; NULL: no faults. -1 when it
 * has no meaning. Faults are off until inject_on(), but on from the start when they
 * come from the environment. */
int inject_set(const char *text);
void inject_on(void);
void inject_off(void);
inject_counts inject_seen(void);

#endif
