/* Machines of a test: network namespaces without names, which are gone with the
 * last process in them, however the test ends. */
#ifndef TESTS_SUPPORT_NETNS_H
#define TESTS_SUPPORT_NETNS_H

#include "base/error.h"

#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MACHINES_MAX 4

static int machine[MACHINES_MAX];

static inline int shell(const char *fmt, ...) GRADCOMP_PRINTF(1, 2);

static inline int shell(const char *fmt, ...)
{
	char line[1000];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	return system(line);
}

static inline int in_machine(int k, const char *command)
{
	return setns(machine[k], CLONE_NEWNET) || shell("%s", command);
}

/* Makes n machines and stands in the last. NULL, or why there can be none here. */
static inline const char *machines_new(int n)
{
	if (geteuid())
		return "only root can make network namespaces";
	if (shell("command -v ip >/dev/null"))
		return "there is no ip command (Debian: iproute2)";
	for (int k = 0; k < n; k++) {
		if (unshare(CLONE_NEWNET))
			return "this machine lets nobody make network namespaces";
		machine[k] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	}
	return NULL;
}

/* A cable from machine a, where its end is called `at_a`, to machine b. */
static inline int machines_wire(int a, const char *at_a, int b, const char *at_b)
{
	return setns(machine[a], CLONE_NEWNET) || shell("ip link add %s type veth peer name %s netns /proc/%d/fd/%d",
	                                                at_a, at_b, (int)getpid(), machine[b]);
}

#endif
