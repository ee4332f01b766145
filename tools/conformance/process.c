#include "tools/conformance/process.h"

#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

int process_floats(void)
{
	volatile float denormal = 1e-40f, one = 1;

	return (fegetround() != FE_TONEAREST) | (denormal * one == 0) << 1;
}

const char *process_floats_text(int mode)
{
	return mode & 1 ? "floats are no longer rounded to nearest" : "denormal floats have become zero";
}

/* FNV-1a. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
	return h;
}

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

void process_look(process_state *s)
{
	const char *locale = setlocale(LC_ALL, NULL);
	struct stat st = {0};
	sigset_t mask;

	*s = (process_state){.floats = process_floats(), .descriptors = entries("/proc/self/fd"),
	                     .threads = entries("/proc/self/task")};
	stat(".", &st);
	s->directory = hash(hash(0, &st.st_dev, sizeof st.st_dev), &st.st_ino, sizeof st.st_ino);
	s->locale = hash(0, locale, locale ? strlen(locale) : 0);
	for (char **e = environ; e && *e; e++)
		s->environment = hash(s->environment, *e, strlen(*e) + 1);
	sigprocmask(SIG_BLOCK, NULL, &mask);
	for (int n = 1; n < 32; n++) {
		s->mask |= (uint64_t)(sigismember(&mask, n) == 1) << n;
		sigaction(n, NULL, &s->handlers[n]);
	}
}

/* It waits for those that are about to end: at most for half a second. */
static int threads_left(int before)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	int now = entries("/proc/self/task");

	for (int i = 0; i < 50 && now > before; i++) {
		nanosleep(&pause, NULL);
		now = entries("/proc/self/task");
	}
	return now - before;
}

static bool had_children(void)
{
	struct rusage of;

	return waitpid(-1, NULL, WNOHANG) >= 0 || (!getrusage(RUSAGE_CHILDREN, &of) && of.ru_minflt > 0);
}

bool process_changed(const process_state *before, char *text, size_t capacity)
{
	int left = threads_left(before->threads), handler = 0;
	process_state now;

	process_look(&now);
	for (int n = 1; n < 32; n++)
		if (now.handlers[n].sa_handler != before->handlers[n].sa_handler)
			handler = n;
	*text = '\0';
	if (now.floats != before->floats)
		snprintf(text, capacity, "%s", process_floats_text(now.floats));
	else if (had_children())
		snprintf(text, capacity, "a process was started");
	else if (left > 0)
		snprintf(text, capacity, "%d threads are left when everything is destroyed", left);
	else if (now.descriptors != before->descriptors)
		snprintf(text, capacity, "%d descriptors are open when everything is destroyed, there were %d",
		         now.descriptors - 3, before->descriptors - 3);
	else if (now.directory != before->directory)
		snprintf(text, capacity, "the working directory was changed");
	else if (now.locale != before->locale)
		snprintf(text, capacity, "the locale was changed, to %s", setlocale(LC_ALL, NULL));
	else if (now.environment != before->environment)
		snprintf(text, capacity, "the environment was changed");
	else if (now.mask != before->mask)
		snprintf(text, capacity, "the signal mask was changed");
	else if (handler)
		snprintf(text, capacity, "the handler of signal %d was changed", handler);
	return *text != '\0';
}
