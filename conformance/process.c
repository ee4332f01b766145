#include "conformance/process.h"

#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

int process_floats(void)
{
	volatile float denormal = 1e-40f, one = 1;
	return (fegetround() != FE_TONEAREST) | (denormal * one == 0) << 1 | (fegetexcept() != 0) << 2;
}

const char *process_floats_text(int mode)
{
	return mode & 1   ? "floats are no longer rounded to nearest"
	       : mode & 2 ? "denormal floats have become zero"
	                  : "exceptions of floats interrupt the process now (feenableexcept)";
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

static void look_at_limits(process_state *s)
{
	struct itimerval left = {0};
	struct rlimit limit;
	cpu_set_t cpus;
	for (int n = 0; n < RLIM_NLIMITS; n++)
		if (!getrlimit((__rlimit_resource_t)n, &limit))
			s->limits = XXH64(&limit.rlim_cur, sizeof limit.rlim_cur, s->limits);
	CPU_ZERO(&cpus);
	if (!sched_getaffinity(0, sizeof cpus, &cpus))
		s->cpus = XXH64(&cpus, sizeof cpus, 0);
	s->priority = getpriority(PRIO_PROCESS, 0);
	getitimer(ITIMER_REAL, &left);
	s->timer = left.it_value.tv_sec || left.it_value.tv_usec;
	s->creation = umask(0);
	umask(s->creation);
}

void process_look(process_state *s)
{
	const char *locale = setlocale(LC_ALL, NULL);
	struct stat st = {0};
	sigset_t mask;
	*s = (process_state){.floats = process_floats(),
	                     .descriptors = entries("/proc/self/fd"),
	                     .threads = entries("/proc/self/task")};
	look_at_limits(s);
	for (int fd = 0; fd < 3; fd++)
		if (!fstat(fd, &st))
			s->standard = XXH64(&st.st_ino, sizeof st.st_ino, s->standard ^ st.st_dev);
	stat(".", &st);
	s->directory = XXH64(&st.st_ino, sizeof st.st_ino, st.st_dev);
	s->locale = XXH64(locale, locale ? strlen(locale) : 0, uselocale((locale_t)0) != LC_GLOBAL_LOCALE);
	for (char **e = environ; e && *e; e++)
		s->environment = XXH64(*e, strlen(*e), s->environment);
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
		snprintf(text, capacity, "the locale was changed, to %s%s", setlocale(LC_ALL, NULL),
		         uselocale((locale_t)0) == LC_GLOBAL_LOCALE ? "" : ", of this thread to another");
	else if (now.environment != before->environment)
		snprintf(text, capacity, "the environment was changed");
	else if (now.mask != before->mask)
		snprintf(text, capacity, "the signal mask was changed");
	else if (handler)
		snprintf(text, capacity, "the handler of signal %d was changed", handler);
	else if (now.standard != before->standard)
		snprintf(text, capacity, "stdin, stdout or stderr is another file now");
	else if (now.timer && !before->timer)
		snprintf(text, capacity, "a timer is running, as of alarm() or setitimer()");
	else if (now.limits != before->limits)
		snprintf(text, capacity, "limits of the process were changed (setrlimit)");
	else if (now.cpus != before->cpus)
		snprintf(text, capacity, "the CPUs that the process may run on were changed");
	else if (now.priority != before->priority)
		snprintf(text, capacity, "the priority is %d, it was %d", now.priority, before->priority);
	else if (now.creation != before->creation)
		snprintf(text, capacity, "the umask is 0%o, it was 0%o", now.creation, before->creation);
	return *text != '\0';
}
