/* Watches what a plugin calls outside of its table: memory, locks, sleep, processes, signals. The calls of its
 * shared object, and of those it brought along, are led through here; a step may make none, and some may be made
 * nowhere. */
#ifndef CONFORMANCE_HOOKS_H
#define CONFORMANCE_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

/* The object that holds `address`, and all others but the system's own. Once a
 * process. Returns how many calls were redirected. */
int hooks_install(const void *address);
/* A call that no function may make where it was made, since the last time: its name, the
 * function of the plugin that made it, how many there were. NULL: none. */
const char *hooks_forbidden(const char **function, int *count);
/* How many such calls there were; and that those after `before` do not count: of a call that has
 * failed, which ends the job. */
int hooks_count(void);
void hooks_forget(int before);
/* For services of the host that are forbidden in a step too. */
void hooks_note(const char *name);
/* The function of the plugin that has looked for a variable of the environment; NULL: none. */
const char *hooks_environment(void);
/* Returns what the plugin asked first of the process, the clock or the machine, and in *function in which function;
 * NULL: nothing. */
const char *hooks_asked(const char **function);
/* Answers such questions as another process on another machine would, at another time. */
extern bool hooks_elsewhere;
/* malloc() gives no more than this at once. */
extern size_t hooks_most;
/* The bytes that were asked for beyond. */
extern size_t hooks_refused;
/* Blocks the plugin took with malloc() and the like, and has not freed. */
int hooks_outstanding(void);

#endif
