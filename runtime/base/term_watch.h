/* Something that is done once before SIGTERM ends the process, by a thread and not inside of a
 * signal handler. SIGTERM stays the end: it is raised again with its default, so the exit status
 * is that of the signal. */
#ifndef BASE_TERM_WATCH_H
#define BASE_TERM_WATCH_H

#include <stdbool.h>

/* It has so many seconds; then the process ends whatever it waits for. */
#define TERM_WATCH_SECONDS 3.0

/* Watches one process at most. false, and nothing is changed, where SIGTERM has another disposition than its
 * default, something is watched already, no thread can be had, or the process is the first of its PID namespace,
 * which SIGTERM does not end. A program that later sets a handler of its own has it. Children do not do it when
 * they are ended. */
bool term_watch_start(void (*last)(void *ctx, int signal), void *ctx);
/* Ends the watch; only the caller who started it calls this. Afterwards `last` is not called; does not return when
 * SIGTERM has come. */
void term_watch_stop(void);

#endif
