/* gradcomp watch: a job while it runs. Rank 0 of every job answers its own user on its node (job/live.h). `--here` asks
 * all of them on this machine; without it a step of srun runs that on the nodes of a Slurm job, and what it prints is
 * read here. */
#include "tools/commands.h"

static const char usage[] =
	"usage: gradcomp watch [--interval S] [--once] [--json] JOB\n"
	"       gradcomp watch --here [--interval S] [--once] [--json] [JOB]\n"
	"\n"
	"Shows what the running Slurm job JOB, one of yours, does: steps, time of a step, bytes sent\n"
	"against uncompressed, what was hidden, compressor and collective, what is wrong. Ends with it.\n"
	"\n"
	"  --interval S  seconds from one look to the next, 0.1 to 3600; default 1\n"
	"  --once        look once, over one interval\n"
	"  --json        an object a line, for machines\n"
	"  --here        your jobs on this machine, in Slurm or not; JOB outside of Slurm is rank 0's\n"
	"                process id\n";

#ifdef HAVE_JANSSON
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/install.h"
#include "base/number.h"
#include "gradcomp/stage.h"
#include "job/live.h"
#include "tools/report_html.h"

#define ROWS_MAX 128 /* reducers and coders that are shown at once */
#define JOB_TEXT 64
#define TEXT_SHOWN 110 /* most of a SPEC: a row is to be less than the 1024 bytes that Slurm keeps together */
#define ROW_TEXT 2048
#define ANSWER_SECONDS 3   /* for jobs to answer */
#define AGAIN_SECONDS 0.01 /* from one try to the next, where too many others want an answer */
#define ROUND_SECONDS 10   /* that a job is shown which has not answered */
#define NOTHING "nothing here uses gradcomp"

typedef struct request {
	const char *job; /* NULL: all */
	double interval;
	bool once, json, here;
} request;

/* Shows a reducer or coder: text is printable, numbers are what a job says. */
typedef struct row {
	char job[JOB_TEXT], host[80]; /* job: "12.0" */
	char asked[TEXT_SHOWN], compressor[TEXT_SHOWN], collective[TEXT_SHOWN], failure[TEXT_SHOWN];
	char slowest[160];   /* who holds up the others; "": nobody */
	long long pid, part; /* which of the process: reducers first */
	double ranks, nodes, wall_s, steps, step_s, dense, wire, work_s, exposed_s, error,
		nonfinite; /* step_s: 0 unknown; error: < 0 */
	double changed_s;  /* wall_s when `steps` was seen to be another one last */
	double came;       /* clock_now() */
} row;

typedef struct table {
	row rows[ROWS_MAX];
	size_t n;
	size_t drawn; /* lines on the terminal */
} table;

static bool same(const row *a, const row *b)
{
	return a->pid == b->pid && a->part == b->part && !strcmp(a->job, b->job) && !strcmp(a->host, b->host);
}

static row *find(table *t, const row *like)
{
	for (size_t i = 0; i < t->n; i++)
		if (same(&t->rows[i], like))
			return &t->rows[i];
	return NULL;
}

/* A row of the table becomes `now`, with the time of a step since its number was another one. */
static const row *keep(table *t, const row *now)
{
	row *r = find(t, now);
	if (!r && t->n == ROWS_MAX)
		return NULL;
	if (!r) {
		t->rows[t->n] = *now;
		t->rows[t->n].changed_s = now->wall_s;
		return &t->rows[t->n++];
	}
	double step_s = r->step_s, changed_s = r->changed_s;

	if (now->steps > r->steps && now->wall_s > changed_s)
		step_s = (now->wall_s - changed_s) / (now->steps - r->steps);
	if (now->steps != r->steps)
		changed_s = now->wall_s;
	*r = *now;
	r->step_s = step_s;
	r->changed_s = changed_s;
	return r;
}

static void forget_older(table *t, double than)
{
	size_t n = 0;
	for (size_t i = 0; i < t->n; i++)
		if (t->rows[i].came >= than)
			t->rows[n++] = t->rows[i];
	t->n = n;
}

static void copy_text(const json_t *o, const char *key, char *out, size_t room)
{
	const char *text = json_string_value(json_object_get(o, key));
	*out = '\0';
	if (text)
		gradcomp_printable(text, out, room);
}

static void copy_specs(const json_t *o, row *r)
{
	copy_text(o, "asked", r->asked, sizeof r->asked);
	copy_text(o, "compressor", r->compressor, sizeof r->compressor);
	copy_text(o, "collective", r->collective, sizeof r->collective);
}

/* Returns a number from 0 to 2^53; 0 for what is none. */
static double amount(const json_t *o, const char *key)
{
	double v = number_of(o, key);
	return v > 0 && v <= 0x1p53 ? v : 0;
}

static double hidden(const row *r)
{
	double h = r->work_s > 0 ? 1 - r->exposed_s / r->work_s : -1;
	return r->work_s > 0 && h < 0 ? 0 : h;
}

static void print_json(const row *r)
{
	json_t *o = json_object();
	json_t *unknown = json_null();
	json_object_set_new(o, "job", json_string(r->job));
	json_object_set_new(o, "host", json_string(r->host));
	json_object_set_new(o, "pid", json_integer(r->pid));
	json_object_set_new(o, "part", json_integer(r->part));
	json_object_set_new(o, "asked", *r->asked ? json_string(r->asked) : unknown);
	json_object_set_new(o, "compressor", *r->compressor ? json_string(r->compressor) : unknown);
	json_object_set_new(o, "collective", *r->collective ? json_string(r->collective) : unknown);
	json_object_set_new(o, "ranks", json_integer((json_int_t)r->ranks));
	json_object_set_new(o, "nodes", json_integer((json_int_t)r->nodes));
	json_object_set_new(o, "wall_s", json_real(r->wall_s));
	json_object_set_new(o, "steps", json_integer((json_int_t)r->steps));
	json_object_set_new(o, "step_s", r->step_s > 0 ? json_real(r->step_s) : unknown);
	json_object_set_new(o, "dense_bytes", json_integer((json_int_t)r->dense));
	json_object_set_new(o, "wire_bytes", json_integer((json_int_t)r->wire));
	json_object_set_new(o, "work_s", json_real(r->work_s));
	json_object_set_new(o, "exposed_s", json_real(r->exposed_s));
	json_object_set_new(o, "hidden", hidden(r) >= 0 ? json_real(hidden(r)) : unknown);
	json_object_set_new(o, "error", r->error >= 0 ? json_real(r->error) : unknown);
	json_object_set_new(o, "nonfinite_steps", json_integer((json_int_t)r->nonfinite));
	json_object_set_new(o, "failure", *r->failure ? json_string(r->failure) : unknown);
	json_object_set_new(o, "slowest", *r->slowest ? json_string(r->slowest) : unknown);
	json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
	putchar('\n');
	json_decref(o);
}

/* The other way round; hostile. */
static bool read_json(const char *text, row *r)
{
	json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	bool whole = json_is_string(json_object_get(o, "job")) && json_is_string(json_object_get(o, "host")) &&
	             json_is_integer(json_object_get(o, "steps"));
	*r = (row){.error = -1, .came = clock_now()};
	copy_text(o, "job", r->job, sizeof r->job);
	copy_text(o, "host", r->host, sizeof r->host);
	copy_specs(o, r);
	copy_text(o, "failure", r->failure, sizeof r->failure);
	copy_text(o, "slowest", r->slowest, sizeof r->slowest);
	r->pid = count_of(o, "pid");
	r->part = count_of(o, "part");
	r->ranks = amount(o, "ranks");
	r->nodes = amount(o, "nodes");
	r->wall_s = amount(o, "wall_s");
	r->steps = amount(o, "steps");
	r->step_s = amount(o, "step_s");
	r->dense = amount(o, "dense_bytes");
	r->wire = amount(o, "wire_bytes");
	r->work_s = amount(o, "work_s");
	r->exposed_s = amount(o, "exposed_s");
	r->nonfinite = amount(o, "nonfinite_steps");
	if (json_is_number(json_object_get(o, "error")))
		r->error = amount(o, "error");
	json_decref(o);
	return whole;
}

static const char *plural(double n)
{
	return n == 1 ? "" : "s"; /* NOLINT: whole numbers */
}

/* "12.0 on n1: powersgd:rank=4 over ring, 4 ranks of 4 nodes, 1200 steps, 84.0 ms a step, 26.1x fewer bytes (0.67 of
 * 17.46 MB a step), 35 % hidden, error 62 %", at most `room` bytes. */
static void row_text(const row *r, char *out, size_t room)
{
	FILE *f = fmemopen(memset(out, 0, room), room, "w");
	if (!f)
		return;
	fprintf(f, "%s on %s: ", r->job, r->host);
	if (*r->asked)
		fprintf(f, "%s over %.*s, ", r->asked, (int)strcspn(r->collective, ":"), r->collective);
	fprintf(f, "%.0f rank%s of %.0f node%s, ", r->ranks, plural(r->ranks), r->nodes, plural(r->nodes));
	if (*r->asked)
		fprintf(f, "%.0f step%s", r->steps, plural(r->steps));
	else
		fputs("no gradient is reduced yet", f);
	if (r->step_s > 0)
		fprintf(f, ", %.*f ms a step", r->step_s < 1, r->step_s * 1e3);
	if (r->steps > 0 && r->dense > 1.05 * r->wire && r->wire > 0)
		fprintf(f, ", %.1fx fewer bytes (%.2f of %.2f MB a step)", r->dense / r->wire, r->wire / r->steps / 1e6,
		        r->dense / r->steps / 1e6);
	else if (r->steps > 0 && r->wire > 0)
		fprintf(f, ", %.2f MB a step", r->wire / r->steps / 1e6);
	if (r->steps > 0 && hidden(r) >= 0)
		fprintf(f, ", %.0f %% hidden", hidden(r) * 100);
	if (r->error > 0)
		fprintf(f, ", error %.*f %%", r->error < 0.1, r->error * 100);
	if (r->nonfinite > 0)
		fprintf(f, ", %.0f step%s with NaN or Inf", r->nonfinite, plural(r->nonfinite));
	if (*r->slowest)
		fprintf(f, "; %s", r->slowest);
	if (*r->failure)
		fprintf(f, "; failed: %s", r->failure);
	fclose(f);
	out[room - 1] = '\0';
}

/* Draws over what a terminal showed before; no line is longer than it is wide. */
static void draw(table *t)
{
	struct winsize size = {0};
	char text[ROW_TEXT];
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_col)
		size.ws_col = 80;
	if (t->drawn)
		printf("\033[%zuA", t->drawn);
	for (size_t i = 0; i < t->n; i++) {
		row_text(&t->rows[i], text, sizeof text);
		printf("%.*s\033[K\n", size.ws_col - 1, text);
	}
	fputs("\033[J", stdout);
	t->drawn = t->n;
}

static void show(const request *q, table *t, const row *r)
{
	char text[ROW_TEXT];
	if (q->json) {
		print_json(r);
	} else if (!q->once && isatty(STDOUT_FILENO)) {
		forget_older(t, clock_now() - 3 * (q->interval + 1));
		draw(t);
	} else {
		row_text(r, text, sizeof text);
		puts(text);
	}
	fflush(stdout);
}

static void rest(double seconds)
{
	struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
	nanosleep(&t, NULL);
}

/* A socket of a job's name, and what is read from it. */
typedef struct asked {
	char job[JOB_TEXT];
	char name[sizeof((struct sockaddr_un){0}.sun_path)]; /* behind the leading 0 */
	unsigned long inode;
	bool own, full, answered; /* own: seen to be; full: too many wait at it already */
	int fd;
	pid_t pid;
	size_t got;
	char *text; /* LIVE_BYTES_MAX, once a process of our user has answered */
} asked;

/* Never waits: a queue that is full is somebody else's, or of a job that answers nobody. */
static void begin_asking(asked *a)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	size_t n = strlen(a->name);
	a->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (a->fd < 0)
		return;
	memcpy(sa.sun_path + 1, a->name, n);
	if (connect(a->fd, (struct sockaddr *)&sa, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)))
		a->full = errno == EAGAIN;
	else if (!getsockopt(a->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) && peer.uid == geteuid() &&
	         (a->text = malloc(LIVE_BYTES_MAX + 1))) {
		a->pid = peer.pid;
		return;
	}
	close(a->fd);
	a->fd = -1;
}

/* Reads on; closes it at the end, or when it says too much. */
static void read_answer(asked *a)
{
	ssize_t n;
	while (a->got < LIVE_BYTES_MAX && (n = recv(a->fd, a->text + a->got, LIVE_BYTES_MAX - a->got, 0)) > 0)
		a->got += (size_t)n;
	if (a->got < LIVE_BYTES_MAX && n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	a->answered = a->got && a->got < LIVE_BYTES_MAX && !n;
	a->text[a->got] = '\0';
	close(a->fd);
	a->fd = -1;
}

/* All of them at once, at most ANSWER_SECONDS. */
static void hear_all(asked *a, size_t n)
{
	struct pollfd *p = calloc(n + 1, sizeof *p);
	double until = clock_now() + ANSWER_SECONDS, now;
	while (p && (now = clock_now()) < until) {
		size_t waiting = 0;

		for (size_t i = 0; i < n; i++) {
			p[i] = (struct pollfd){a[i].fd, POLLIN, 0};
			waiting += a[i].fd >= 0;
		}
		if (!waiting || poll(p, n, (int)((until - now) * 1e3) + 1) <= 0)
			break;
		for (size_t i = 0; i < n; i++)
			if (a[i].fd >= 0 && p[i].revents)
				read_answer(&a[i]);
	}
	free(p);
}

/* Rows of a report, with the number of the part; hostile. */
static void take_parts(const request *q, table *t, const json_t *report, const char *kind, row *r)
{
	const json_t *o;
	size_t i;
	json_array_foreach(json_object_get(report, kind), i, o)
	{
		copy_specs(o, r);
		r->ranks = amount(o, "ranks");
		r->steps = amount(o, "steps") + amount(o, "reduce_scatters");
		r->dense = amount(o, "dense_bytes");
		r->wire = amount(o, "wire_bytes");
		r->work_s = amount(o, "encode_s") + amount(o, "exchange_s") + amount(o, "decode_s") +
		            amount(o, "convert_s");
		r->exposed_s = amount(o, "exposed_s");
		r->nonfinite = amount(o, "nonfinite_steps") + amount(o, "nonfinite");
		r->error = json_is_number(json_object_get(o, "error_last")) ? amount(o, "error_last") : -1;
		const row *kept = keep(t, r);

		if (kept && q)
			show(q, t, kept);
		r->part++;
	}
}

/* "rank 3 on n2 costs 34 % of a step by late data" */
static void take_slowest(const json_t *slowest, row *r)
{
	char host[TEXT_SHOWN / 2], kind[24];
	double share = amount(slowest, "share");
	share = share > 0 && share < 1 ? share : share > 0;
	copy_text(slowest, "host", host, sizeof host);
	copy_text(slowest, "kind", kind, sizeof kind);
	if (*kind)
		snprintf(r->slowest, sizeof r->slowest, "rank %lld on %s costs %d %% of a step by %s",
		         count_of(slowest, "rank"), host, (int)(share * 100 + 0.5), kind);
}

/* Returns true when it was a job's answer. Without a request nothing is shown. */
static bool take_answer(const request *q, table *t, const char *job, pid_t pid, const char *text)
{
	json_t *report = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	row r = {.pid = pid,
	         .error = -1,
	         .came = clock_now(),
	         .nodes = amount(report, "nodes"),
	         .ranks = amount(report, "ranks"),
	         .wall_s = amount(report, "wall_s")};
	bool whole = count_of(report, "schema") == 1 && json_is_array(json_object_get(report, "reducers"));
	snprintf(r.job, sizeof r.job, "%s", job);
	gethostname(r.host, sizeof r.host - 1);
	copy_text(report, "failure", r.failure, sizeof r.failure);
	take_slowest(json_object_get(report, "slowest"), &r);
	if (whole) {
		take_parts(q, t, report, "reducers", &r);
		take_parts(q, t, report, "coders", &r);
		const row *kept = r.part ? NULL : keep(t, &r);

		if (kept && q)
			show(q, t, kept);
	}
	json_decref(report);
	return whole;
}

/* The name of a socket of a job that is asked for: "JOB.STEP" is put into `job`. Anybody may have chosen it. */
static bool is_wanted(const char *name, const char *only, char job[JOB_TEXT])
{
	size_t head = sizeof LIVE_NAME - 1, n, id;
	if (strncmp(name, LIVE_NAME, head))
		return false;
	name += head;
	n = strspn(name, "0123456789.");
	id = strcspn(name, ".");
	if (!n || n >= JOB_TEXT || id >= n || name[n] != '/' || strlen(name + n + 1) != LIVE_RANDOM ||
	    strspn(name + n + 1, "0123456789abcdef") != LIVE_RANDOM)
		return false;
	snprintf(job, JOB_TEXT, "%.*s", (int)n, name);
	return !only || (strlen(only) == id && !strncmp(only, name, id));
}

/* The sockets of a job's name that is asked for. */
static size_t list_sockets(const char *only, asked **out)
{
	FILE *f = fopen("/proc/net/unix", "re");
	char *line = NULL;
	size_t room = 0, n = 0, capacity = 0;
	*out = NULL;
	while (f && getline(&line, &room, f) > 0) {
		asked a = {.fd = -1};
		const char *name = strchr(line, '@');

		line[strcspn(line, "\n")] = '\0';
		/* Connections have the name, too: a listener has the flag __SO_ACCEPTCON. */
		if (!name || !strstr(line, " 00010000 ") || !is_wanted(name + 1, only, a.job) ||
		    strlen(name + 1) >= sizeof a.name)
			continue;
		sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &a.inode);
		memcpy(a.name, name + 1, strlen(name));
		if (n == capacity) {
			asked *more = realloc(*out, (capacity = capacity ? 2 * capacity : 64) * sizeof *more);

			if (!more)
				break;
			*out = more;
		}
		(*out)[n++] = a;
	}
	free(line);
	if (f)
		fclose(f);
	return n;
}

/* Marks those that a process of this user has open. */
static void mark_own(asked *a, size_t n)
{
	DIR *all = opendir("/proc"), *d;
	struct dirent *e;
	char path[PATH_MAX], target[64];
	unsigned long inode;
	struct stat st;
	while (all && (e = readdir(all))) {
		snprintf(path, sizeof path, "/proc/%s/fd", e->d_name);
		if (*e->d_name < '1' || *e->d_name > '9' || stat(path, &st) || st.st_uid != geteuid() ||
		    !(d = opendir(path)))
			continue;
		while ((e = readdir(d))) {
			ssize_t bytes = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);

			target[bytes > 0 ? bytes : 0] = '\0';
			for (size_t i = 0; sscanf(target, "socket:[%lu]", &inode) == 1 && i < n; i++)
				a[i].own |= a[i].inode == inode;
		}
		closedir(d);
	}
	if (all)
		closedir(all);
}

/* Whom others keep from being asked: jobs of this user are tried again for a while. */
static void ask_again(asked *a, size_t n)
{
	double until = clock_now() + ANSWER_SECONDS;
	size_t full = 0;
	for (size_t i = 0; i < n; i++)
		full += a[i].full;
	if (full)
		mark_own(a, n);
	while (full && clock_now() < until) {
		full = 0;
		for (size_t i = 0; i < n; i++)
			if (a[i].full && a[i].own) {
				a[i].full = false;
				begin_asking(&a[i]);
				full += a[i].full;
			}
		if (full)
			rest(AGAIN_SECONDS);
	}
	hear_all(a, n);
}

/* Whom it has not asked, once. */
static void tell_unasked(const asked *a, size_t n)
{
	static bool told;
	size_t others = 0;
	for (size_t i = 0; i < n && !told; i++) {
		if (a[i].full && a[i].own)
			fprintf(stderr,
			        "gradcomp: job %s of yours runs, and cannot be asked: too many others wait to ask it\n",
			        a[i].job);
		others += a[i].full && !a[i].own;
	}
	if (others)
		fprintf(stderr,
		        "gradcomp: %zu sockets that are named as a job's are of others, or cannot be asked: their queues are full\n",
		        others);
	for (size_t i = 0; i < n; i++)
		told |= a[i].full;
}

/* Asks every job there is, all at once; how many of this user there are. */
static int look(const request *q, const request *shown, table *t)
{
	asked *a;
	size_t n = list_sockets(q->job, &a);
	int answers = 0;
	for (size_t i = 0; i < n; i++)
		begin_asking(&a[i]);
	hear_all(a, n);
	ask_again(a, n);
	for (size_t i = 0; i < n; i++) {
		if (a[i].answered)
			answers += take_answer(shown, t, a[i].job, a[i].pid, a[i].text);
		answers += a[i].full && a[i].own;
		if (a[i].fd >= 0)
			close(a[i].fd);
		free(a[i].text);
	}
	tell_unasked(a, n);
	free(a);
	return answers;
}

static int watch_here(const request *q)
{
	static table t;
	int answers = look(q, q->once ? NULL : q, &t);
	if (!answers) {
		fputs("gradcomp: " NOTHING ": no job of yours", stderr);
		if (q->job)
			fprintf(stderr, " with the number %s", q->job);
		fputs(" runs a rank 0 on this machine\n", stderr);
		return 1;
	}
	rest(q->interval);
	if (q->once) {
		look(q, NULL, &t); /* a job that has ended meanwhile is shown as it was */
		for (size_t i = 0; i < t.n; i++)
			show(q, &t, &t.rows[i]);
		return 0;
	}
	while (look(q, q, &t)) {
		forget_older(&t, clock_now() - ROUND_SECONDS - 3 * q->interval);
		rest(q->interval);
	}
	return 0;
}

#define SAID_BYTES 65536

/* A program that runs, with its output and what it says of errors in one pipe. */
typedef struct child {
	pid_t pid;
	int out;
} child;

static bool start(child *c, const char *const *argv)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC))
		return false;
	c->pid = fork();
	if (c->pid == 0) {
		/* An interrupt is the parent's to hand on, and srun must not outlive it. */
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		int null = open("/dev/null", O_RDONLY);

		if (null >= 0 && dup2(null, 0) == 0 && dup2(ends[1], 1) == 1 && dup2(ends[1], 2) == 2)
			execvp(argv[0], (char *const *)(uintptr_t)argv);
		dprintf(2, "%s: %s\n", argv[0], strerror(errno));
		_exit(127);
	}
	close(ends[1]);
	c->out = ends[0];
	if (c->pid < 0)
		close(ends[0]);
	return c->pid > 0;
}

static int finish(child *c, bool stop)
{
	int status = -1;
	if (stop)
		kill(c->pid, SIGTERM);
	close(c->out);
	if (waitpid(c->pid, &status, 0) != c->pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Some bytes, 0 at the end, -1 when a signal has come. */
static ssize_t hear(const child *c, char *out, size_t room)
{
	struct pollfd p = {.fd = c->out, .events = POLLIN};
	while (!command_caught_signal()) {
		int n = poll(&p, 1, 200);

		if (n > 0) {
			ssize_t got = read(c->out, out, room);

			if (got >= 0 || errno != EINTR)
				return got > 0 ? got : 0;
		}
	}
	return -1;
}

/* All that a command says, without the last newline. Its exit status, or -1. */
static int said_by(const char *const *argv, char out[SAID_BYTES])
{
	size_t n = 0;
	ssize_t more = -1;
	child c;
	*out = '\0';
	if (!start(&c, argv))
		return -1;
	while (n < SAID_BYTES - 1 && (more = hear(&c, out + n, SAID_BYTES - 1 - n)) > 0)
		n += (size_t)more;
	out[n] = '\0';
	while (n && out[n - 1] == '\n')
		out[--n] = '\0';
	return finish(&c, more != 0);
}

static int complain(const char *job, const char *what, const char *why)
{
	char text[400];
	fprintf(stderr, "gradcomp: job %s %s%s\n", job, what, gradcomp_printable(why, text, sizeof text));
	return 1;
}

/* Runs, and is this user's: 0. It has ended: -1. Else the reason is told, and 1. */
static int find_job(const char *job, char id[JOB_TEXT], bool seen)
{
	static char said[SAID_BYTES];
	const char *argv[] = {"squeue", "-h", "-t", "all", "-j", job, "-o", "%A %U %T %u", NULL};
	char number[24], state[40], user[80];
	int64_t uid;
	int status = said_by(argv, said);
	if (status && strstr(said, "Invalid job id"))
		return seen ? -1 : complain(job, "is not known to Slurm, or has ended a while ago", "");
	if (status) {
		const char *last = strrchr(said, '\n'); /* the reason why it ended; before it stands what it tried */
		last = last ? last + 1 : said;
		return complain(job, "cannot be asked for: ", *last ? last : "squeue does not say why");
	}
	if (!*said)
		return seen ? -1 : complain(job, "is not there, or has ended a while ago", "");
	if (strchr(said, '\n'))
		return complain(job, "is several jobs: name one of them, as squeue --array lists them", "");
	if (sscanf(said, "%63s %23s %39s %79s", id, number, state, user) != 4 || number_int(number, &uid) != NUMBER_OK)
		return complain(job, "cannot be asked for: squeue says ", said);
	if (uid != getuid())
		return complain(job, "is not yours: gradcomp watch shows jobs to who runs them; this one is of ", user);
	if (!strcmp(state, "RUNNING"))
		return 0;
	if (!strcmp(state, "PENDING") || !strcmp(state, "CONFIGURING") || !strcmp(state, "SUSPENDED"))
		return complain(job, "does not run: its state is ", state);
	return seen ? -1 : complain(job, "has ended: its state is ", state);
}

/* The nodes of the job's steps, or the first of each, where rank 0 mostly is: separated by commas, to be freed. */
static char *nodes_of(const char *id, bool all, int *n)
{
	static char said[SAID_BYTES], names[SAID_BYTES];
	const char *squeue[] = {"squeue", "-h", "-s", "-j", id, "-o", "%i %N", NULL};
	char *out = calloc(1, SAID_BYTES), *rest = said, *line;
	*n = 0;
	if (!out || said_by(squeue, said))
		return out;
	while ((line = strsep(&rest, "\n"))) {
		char *list = strchr(line, ' '), *more = names, *host;
		const char *scontrol[] = {"scontrol", "show", "hostnames", list ? list + 1 : "", NULL};

		if (!list || strstr(line, ".extern ") || said_by(scontrol, names))
			continue;
		while ((host = strsep(&more, "\n")) && *host) {
			size_t used = strlen(out), length = strlen(host);
			const char *there = out;

			while ((there = strstr(there, host)) &&
			       ((there > out && there[-1] != ',') || (there[length] && there[length] != ',')))
				there++;
			if (!there && used + length + 2 < SAID_BYTES) {
				snprintf(out + used, SAID_BYTES - used, "%s%s", used ? "," : "", host);
				++*n;
			}
			if (!all)
				break;
		}
	}
	return out;
}

/* Makes the step as if it was typed in a shell of its own: what the shell has of an allocation is not for this
 * step. */
static void forget_allocation(void)
{
	char name[256];
	unsetenv("GRADCOMP");
	for (char **e = environ; *e;) {
		size_t n = strcspn(*e, "=");

		if (n < sizeof name && !strncmp(*e, "SLURM_", 6) && strncmp(*e, "SLURM_CONF=", 11)) {
			snprintf(name, sizeof name, "%.*s", (int)n, *e);
			unsetenv(name);
			e = environ;
		} else {
			e++;
		}
	}
}

typedef struct stream {
	const request *q;
	table t;
	bool any;        /* row has come */
	char wrong[400]; /* the last thing that srun said and that is no row */
	char line[ROW_TEXT];
	size_t n;
	bool overlong;
} stream;

static void take_line(stream *s)
{
	row r;
	s->line[s->n] = '\0';
	if (*s->line != '{') {
		if (*s->line && !strstr(s->line, "Exited with exit code") &&
		    (!strstr(s->wrong, NOTHING) || strstr(s->line, NOTHING)))
			snprintf(s->wrong, sizeof s->wrong, "%.399s", s->line);
	} else if (!s->overlong && read_json(s->line, &r)) {
		/* The time of a step was measured where it was asked for. */
		row *old = find(&s->t, &r);

		if (old)
			*old = r;
		else if (s->t.n < ROWS_MAX)
			s->t.rows[s->t.n++] = r;
		s->any = true;
		show(s->q, &s->t, &r);
	}
	s->n = 0;
	s->overlong = false;
}

/* A step on these nodes, to its end. False when a signal has come. */
static bool follow(stream *s, const char *id, const char *nodes, int n)
{
	char *own = install_own_file(&(unsigned long long){0}), job[JOB_TEXT + 8], count[16], interval[32], text[4096];
	const char *argv[] = {"srun",
	                      job,
	                      "--overlap",
	                      "--mpi=none",
	                      "-N",
	                      count,
	                      "-n",
	                      count,
	                      "--ntasks-per-node=1",
	                      "-w",
	                      nodes,
	                      "--kill-on-bad-exit=0",
	                      "--quit-on-interrupt",
	                      own,
	                      "watch",
	                      "--here",
	                      "--json",
	                      "--interval",
	                      interval,
	                      id,
	                      s->q->once ? "--once" : NULL,
	                      NULL};
	ssize_t got = -1;
	child c;
	snprintf(job, sizeof job, "--jobid=%s", id);
	snprintf(count, sizeof count, "%d", n);
	snprintf(interval, sizeof interval, "%g", s->q->interval);
	if (own && start(&c, argv)) {
		while ((got = hear(&c, text, sizeof text)) > 0)
			for (ssize_t i = 0; i < got; i++)
				if (text[i] == '\n')
					take_line(s);
				else if (s->n < sizeof s->line - 1)
					s->line[s->n++] = text[i];
				else
					s->overlong = true;
		finish(&c, got < 0);
	}
	free(own);
	return got >= 0 || !command_caught_signal();
}

static int watch_job(const request *q)
{
	static stream s;
	char id[JOB_TEXT], *nodes = NULL;
	int n, found;
	bool goes_on = true;
	command_catch_signals();
	forget_allocation();
	s.q = q;
	while (goes_on && !(found = find_job(q->job, id, s.any))) {
		bool before = s.any;

		s.any = false;
		for (int all = 0; goes_on && !s.any && all < 2; all++) {
			free(nodes);
			nodes = nodes_of(id, all, &n);
			if (n)
				goes_on = follow(&s, id, nodes, n);
		}
		free(nodes);
		nodes = NULL;
		if (q->once && s.any)
			return 0;
		if (!s.any && !before && goes_on)
			return *s.wrong && !strstr(s.wrong, NOTHING)
			               ? complain(q->job, "cannot be looked at: ", s.wrong)
			               : complain(q->job, "runs, but nothing in it uses gradcomp now", "");
		s.any = true;
		if (goes_on)
			rest(q->interval);
	}
	if (command_caught_signal())
		return 128 + command_caught_signal();
	if (found < 0)
		fprintf(stderr, "gradcomp: job %s has ended\n", q->job);
	return found > 0;
}

int cmd_watch(int argc, char **argv)
{
	const char *words[1] = {NULL}, *interval = "1";
	int once = 0, json = 0, here = 0, status;
	const command_option options[] = {{"--interval", &interval, NULL},
	                                  {"--once", NULL, &once},
	                                  {"--json", NULL, &json},
	                                  {"--here", NULL, &here},
	                                  {NULL, NULL, NULL}};
	request q = {0};
	status = command_take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	q = (request){.job = words[0], .once = once, .json = json, .here = here};
	if (number_float(interval, &q.interval) != NUMBER_OK || q.interval < 0.1 || q.interval > 3600)
		return command_usage_value(usage, "--interval", interval, "seconds, 0.1 to 3600");
	if (!q.job && !here)
		return command_usage_error(
			usage, "watch: which job? squeue --me lists yours; --here shows those of this machine");
	if (q.job && (!*q.job || strlen(q.job) > 30 || q.job[strspn(q.job, here ? "0123456789" : "0123456789_+")]))
		return command_usage_value(usage, "JOB", q.job,
		                           here ? "a number" : "the number of a job, as squeue shows it");
	return here ? watch_here(&q) : watch_job(&q);
}

#else

int cmd_watch(int argc, char **argv)
{
	const char *words[1], *interval;
	int flag;
	const command_option options[] = {{"--interval", &interval, NULL},
	                                  {"--once", NULL, &flag},
	                                  {"--json", NULL, &flag},
	                                  {"--here", NULL, &flag},
	                                  {NULL, NULL, NULL}};
	int status = command_take_options(argc, argv, usage, options, words, 1);
	if (status >= 0)
		return status;
	fputs("gradcomp: this gradcomp was built without jansson and cannot watch jobs\n", stderr);
	return 1;
}

#endif
