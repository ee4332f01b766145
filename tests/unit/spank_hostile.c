/* The child that an epilog runs as a user, and other processes of that user: they cannot keep
 * root busy, put words into the child's mouth, or outlast it. Nor do files that are not root's. */
#include "tests/support/tap.h"

#ifdef HAVE_SLURM

#include "spank/arguments.c"
#include "spank/exec_helper.c"
#include "spank/prolog.c"

#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/support/pace.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define SOMEBODY 61111 /* no process of the machine is his */
static const exec_user somebody = {.uid = SOMEBODY, .gid = SOMEBODY, .groups = {SOMEBODY}, .ngroups = 1};

static int nlines;
static void count(void *ctx, const char *text, bool passing)
{
	(void)ctx, (void)text, (void)passing;
	nlines++;
}

static exec_helper r;
static char why[512];

static int sh(const char *script, int timeout, const exec_user *user)
{
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)script, NULL},
	     *env[] = {(char *)"PATH=/usr/bin:/bin", NULL};
	r = (exec_helper){.argv = argv, .env = env, .timeout = timeout, .line = count, .user = user};
	why[0] = 0;
	nlines = 0;
	return exec_helper_run(&r, why, sizeof why);
}

static double since(double begin)
{
	return now() - begin;
}

/* Others hold the pipe after the child's end, and keep it full. */
static void flood(void)
{
	for (int to = 1; to <= 2; to++) {
		char script[200], path[] = "/tmp/hostile-XXXXXX";
		FILE *f = fdopen(mkstemp(path), "r");
		int n = 0;
		snprintf(script, sizeof script,
		         "for i in 1 2 3 4; do setsid cat /dev/zero >&%d & echo $! >> %s; done; sleep 0.2", to, path);
		is_int(sh(script, 0, NULL), 0, "processes in sessions of their own flood %s",
		       to == 1 ? "stdout" : "stderr");
		/* The pipe is closed by now, which ends them unless this comes first. */
		for (int pid; f && fscanf(f, "%d", &pid) == 1 && pid > 1; n++)
			kill(pid, SIGKILL);
		is_int(n, 4, "without end, four of them");
		fclose(f);
		unlink(path);
	}
	is_int(sh("yes >&2", 600, &somebody), -1, "a child that floods, as a user");
	like(why, "wrote more than 16 MiB", "is stopped before its time");
}

/* Returns 1 when it runs: not gone, not a zombie. */
static int runs(int pid)
{
	char path[40], state = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return 0;
	int got = fscanf(f, "%*d (%*[^)]) %c", &state);
	fclose(f);
	return got == 1 && state != 'Z' && state != 'X';
}

static void session(void)
{
	is_int(sh("sleep 1000 & echo $!", 0, &somebody), 0, "a child that leaves a process");
	int pid = atoi(r.output);
	for (int i = 0; runs(pid) && i < 1000; i++)
		usleep(10000);
	ok(pid > 1 && !runs(pid), "takes it along");
	is_int(sh("trap '' TERM; sleep 1000 & echo $!; wait; wait", 1, &somebody), -1, "one that is late");
	pid = atoi(r.output);
	for (int i = 0; runs(pid) && i < 1000; i++)
		usleep(10000);
	ok(pid > 1 && !runs(pid), "likewise");
	is_int(sh("kill -STOP $$", 1, &somebody), -1, "one that has been stopped");
	like(why, "did not end within 1 s", "is late");
}

enum { SEEN, TAKEN, OPENED, READY, COUNT };
static int *tally;

/* The child of process `parent` that is ours by now; 0: there is none. */
static int victim(int parent)
{
	char path[60];
	int pid, found = 0;
	FILE *f;
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, parent);
	f = fopen(path, "r");
	while (f && !found && fscanf(f, "%d", &pid) == 1)
		found = pid != getpid() && kill(pid, 0) == 0 ? pid : 0;
	if (f)
		fclose(f);
	return found;
}

static pid_t attacker(void (*attack)(int parent))
{
	pid_t parent = getpid(), pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setgroups(0, NULL) < 0 || setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 ||
	    setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
		_exit(1);
	tally[READY] = 1;
	for (;;)
		attack(parent);
}

static void take_descriptors(int parent)
{
	char path[40];
	int pid = victim(parent), pidfd = pid ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
	tally[SEEN] += pid != 0;
	snprintf(path, sizeof path, "/proc/%d/fd/1", pid);
	while (pidfd >= 0 && kill(pid, 0) == 0) {
		int taken = (int)syscall(SYS_pidfd_getfd, pidfd, 1, 0), opened = open(path, O_WRONLY | O_NONBLOCK);
		tally[TAKEN] += taken >= 0;
		tally[OPENED] += opened >= 0;
		close(taken), close(opened);
	}
	close(pidfd);
}

static void stop_it(int parent)
{
	int pid = victim(parent);
	tally[SEEN] += pid && kill(pid, SIGSTOP) == 0;
}

static void race(void)
{
	tally = mmap(NULL, COUNT * sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = attacker(take_descriptors);
	while (!((volatile int *)tally)[READY])
		usleep(1000);
	for (int i = 0; i < 20; i++)
		sh("sleep 0.05", 0, &somebody);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(tally[SEEN] > 0, "a process of the user's finds the child (%d times)", tally[SEEN]);
	is_int(tally[TAKEN], 0, "it takes no descriptor of the child's");
	is_int(tally[OPENED], 0, "and opens none");

	memset(tally, 0, COUNT * sizeof *tally);
	pid = attacker(stop_it);
	while (!((volatile int *)tally)[READY])
		usleep(1000);
	double begin = now();
	int late = 0;
	for (int i = 0; i < 2; i++)
		late += sh("sleep 0.2", 1, &somebody) != 0;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(tally[SEEN] > 0 && late > 0, "a process of the user's stops the child, before it is the command or after");
	ok(since(begin) < 2 * (1 + 2 * GRACE) * pace() + 5, "which has an end: %.1f s", since(begin));
}

static void limits(void)
{
	char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)"ulimit -v; ulimit -t; ulimit -c", NULL},
	     *env[] = {NULL};
	r = (exec_helper){.argv = argv, .env = env, .user = &somebody, .memory = (size_t)300 << 20, .cpu = 7};
	is_int(exec_helper_run(&r, why, sizeof why), 0, "limits");
	is_str(r.output, "307200\n7\n0\n", "of memory and CPU time, and no core file");
	argv[2] = (char *)"while :; do :; done";
	r.cpu = 1;
	is_int(exec_helper_run(&r, why, sizeof why), -1, "a child that computes for ever");
	like(why, "killed by signal", "is ended by the kernel");
}

/* Slurm's, which is not linked here. */
spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	(void)sp, (void)item;
	return ESPANK_ERROR;
}

void slurm_spank_log(const char *fmt, ...)
{
	(void)fmt;
}

void slurm_error(const char *fmt, ...)
{
	(void)fmt;
}

static void file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		exit(2);
}

/* Tries what epilogs find in the directory of records. */
static void records_of(void)
{
	arguments args = {.records = "/tmp/hostile-XXXXXX"};
	char text[64] = "", path[PATH_MAX + 16];
	if (!mkdtemp(args.records))
		exit(2);
	record(&args, "7.shared", "somebody");
	record(&args, "7.shared", "bob");
	ok(take_record(&args, "7.shared", text, sizeof text), "a record");
	is_str(text, "bob", "says what was written last, under a number that a job had before");
	ok(!take_record(&args, "7.shared", text, sizeof text), "it is taken once");
	snprintf(path, sizeof path, "%s/8.shared", args.records);
	file(path, "root");
	if (chown(args.records, SOMEBODY, SOMEBODY))
		exit(2);
	ok(!take_record(&args, "8.shared", text, sizeof text), "in a directory of somebody else's there are none");
	ok(!access(path, F_OK), "and nothing is removed there");
	if (unlink(path) || mkfifo(path, 0666))
		exit(2);
	ok(!take_record(&args, "8.shared", text, sizeof text), "nor is a FIFO waited for");
	unlink(path);
	rmdir(args.records);
}

/* Checks when a prolog has to start the command. */
static void drop_ins(void)
{
	char dir[] = "/tmp/hostile-XXXXXX", conf[60], folder[60], name[80];
	if (!mkdtemp(dir))
		exit(2);
	snprintf(conf, sizeof conf, "%s/gradcomp.conf", dir);
	snprintf(folder, sizeof folder, "%s/conf.d", dir);
	ok(!may_stage(conf, folder), "no file: nothing is staged");
	file(conf, "[stage]\n#prolog = yes\n");
	if (mkdir(folder, 0755))
		exit(2);
	snprintf(name, sizeof name, "%s/a.conf", folder);
	if (mkfifo(name, 0666))
		exit(2);
	ok(!may_stage(conf, folder), "a comment, and a FIFO that is not waited for: neither");
	snprintf(name, sizeof name, "%s/b.txt", folder);
	file(name, "[stage]\nprolog = yes\n");
	ok(!may_stage(conf, folder), "what has another suffix does not count");
	snprintf(name, sizeof name, "%s/b.conf", folder);
	file(name, "[stage]\nprolog = yes\n");
	ok(may_stage(conf, folder), "a file beside gradcomp.conf says prolog");
	ok(!may_stage(conf, NULL), "beside another file than the site's nothing counts");
	file(conf, "[stage]\nprolog = yes\n");
	ok(may_stage(conf, NULL), "the file itself says prolog");
	snprintf(name, sizeof name, "rm -r %s", dir);
	if (system(name))
		exit(2);
}

int main(void)
{
	if (getuid() != 0) {
		printf("1..0 # SKIP needs root: it becomes another user\n");
		return 0;
	}
	alarm((unsigned)(60 * pace()) + 60); /* the code under test did not end once */
	records_of();
	drop_ins();
	limits();
	session();
	race();
	flood();
	return done_testing();
}

#else

int main(void)
{
	printf("1..0 # SKIP no Slurm: no SPANK plugin\n");
	return 0;
}

#endif
