/* Threads of the library. */
#ifndef THREAD_H
#define THREAD_H

#include <pthread.h>

/* Starts one that signals pass by: they are the application's. 0, or an error number. */
int thread_start(pthread_t *thread, void *(*body)(void *), void *arg);

#endif
