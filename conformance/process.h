/* Compares what belongs to the process that a plugin is loaded into, and that a plugin leaves as it is: how floats
 * are rounded, descriptors, threads, the working directory and so on. */
#ifndef CONFORMANCE_PROCESS_H
#define CONFORMANCE_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct process_state {
	int floats, descriptors, threads, priority;
	uint64_t directory, locale, environment, mask, limits, cpus, standard; /* standard: descriptors 0 to 2 */
	unsigned creation;                                                     /* the mask of new files' modes */
	bool timer;
	struct sigaction handlers[32];
} process_state;

/* Rounding to nearest, denormals kept, no exception interrupts: 0, of this thread. */
int process_floats(void);
/* In words; `mode` is not 0. */
const char *process_floats_text(int mode);
void process_look(process_state *s);
/* Says in words what has changed since `before`; false: nothing. A thread or a child that is about to end is waited
 * for. */
bool process_changed(const process_state *before, char *text, size_t capacity);

#endif
