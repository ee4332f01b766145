/* scaling: ranks of one job as processes of one machine, from few to many: what joining
 * takes, what every installed collective takes the first time (its connections are made
 * then) and again, and the memory, descriptors and sockets of a rank.
 *
 *     scaling [--json FILE] [--links LIST] [--collectives NAME,...] [--kill | --reducers] [RANKS...]
 *
 * --kill instead: a rank in the middle is killed while all are in all-reduces, and how long it takes
 * until the others know, and name it. Fails when one does not.
 *
 * --reducers instead: the threads and the memory of a rank with 0, 1 and 20 reducers of 4 KB, which have all
 * done a step, one after another.
 *
 * LIST is transport.allow, "tcp" by default, so that all goes through the loopback
 * device as it would between nodes. Without RANKS: 2 8 32 128 512. Times are those of
 * the slowest rank on the cores there are, so they grow with all work together. */
#include "tests/support/process_ranks.h"

#include "tests/support/every_collective.h"
#include "tests/support/killed_rank.h"

#include "job/job.h"

#include <dirent.h>
#include <sys/resource.h>

enum { MOST = 16 };

typedef struct usage {
	double own, cpu; /* bytes of memory that no other process sees; seconds */
	int fds, sockets;
} usage;

/* How a rank saw a collective. */
typedef struct view {
	double first, again; /* seconds */
	usage at;
	int failed;
} view;

typedef struct rank_result {
	usage joined;
	view seen[2]; /* plain, and coded */
	gradcomp_error err;
} rank_result;

static char names[MOST][64];
static int nnames, present; /* the one at work */
static const char *only;

static int listed(const char *name)
{
	size_t n = strlen(name);
	for (const char *p = only; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, name, n) && (!p[n] || p[n] == ','))
			return 1;
	return !only;
}

static int note(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	(void)ctx, (void)path, (void)reason;
	if (c && !(c->traits & GRADCOMP_TRAIT_CUDA) && nnames < MOST && listed(name))
		snprintf(names[nnames++], sizeof names[0], "%s", name);
	return 0;
}

static int codes(const struct gradcomp_collective_v1 *c)
{
	return (c->serves &
	        (GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_CODED_ALLGATHER)) != 0;
}

static usage look(void)
{
	usage u = {0};
	struct rusage r;
	char line[256], target[64];
	long kib, all = 0;
	FILE *f = fopen("/proc/self/smaps_rollup", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "Private_Clean: %ld kB", &kib) == 1 ||
		    sscanf(line, "Private_Dirty: %ld kB", &kib) == 1)
			all += kib;
	u.own = 1024.0 * (double)all;
	if (f)
		fclose(f);
	DIR *d = opendir("/proc/self/fd");
	for (struct dirent *e; d && (e = readdir(d));) {
		ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
		u.fds += n > 0;
		u.sockets += n > 7 && !strncmp(target, "socket:", 7);
	}
	if (d)
		closedir(d);
	getrusage(RUSAGE_SELF, &r);
	u.cpu = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
	        1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
	return u;
}

static double timed(every *e, process_board *board)
{
	pthread_barrier_wait(&board->barrier);
	double start = process_now();
	every_run(e);
	return process_now() - start;
}

/* Every primitive twice. */
static void view_kind(view *v, every *e, process_board *board)
{
	e->failed = 0;
	v->first = timed(e, board);
	v->again = timed(e, board);
	pthread_barrier_wait(&board->barrier);
	v->at = look();
	v->failed = e->failed;
	/* All look before one goes on. */
	pthread_barrier_wait(&board->barrier);
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	rank_result *at = room;
	pthread_barrier_wait(&board->barrier);
	at->joined = look();
	const plugin *p;
	spec s;
	coll_ctx coll_ctx;
	if (spec_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, names[present], &p, &s, &at->err) ||
	    group_coll_open(gradcomp_job_world(job), p, &s, &coll_ctx, &at->err)) {
		fprintf(stderr, "scaling: rank %d: %s\n", rank, at->err.text);
		exit(1);
	}
	every e = {.c = coll_ctx.collective,
	           .instance = coll_ctx.instance,
	           .host = &job->host,
	           .rank = rank,
	           .P = board->P};
	view_kind(&at->seen[0], &e, board);
	e.coded = 1;
	if (codes(coll_ctx.collective))
		view_kind(&at->seen[1], &e, board);
	at->err = e.err;
	group_coll_close(&coll_ctx);
	spec_clear(&s);
}

enum { REDUCERS = 20, NUMBERS = 1024 };

typedef struct crowd {
	struct {
		int threads;
		double resident, shared_out, own; /* RSS, PSS, what no other process sees */
	} at[3];                                  /* with 0, 1 and REDUCERS reducers */
} crowd;

static double kib_of(const char *file, const char *name)
{
	char line[256];
	double kib = 0;
	size_t n = strlen(name);
	FILE *f = fopen(file, "r");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, name, n))
			kib += strtod(line + n, NULL);
	if (f)
		fclose(f);
	return kib;
}

static void count_crowd(crowd *c, int which, process_board *board)
{
	pthread_barrier_wait(&board->barrier);
	c->at[which].threads = (int)kib_of("/proc/self/status", "Threads:");
	c->at[which].resident = 1024 * kib_of("/proc/self/smaps_rollup", "Rss:");
	c->at[which].shared_out = 1024 * kib_of("/proc/self/smaps_rollup", "Pss:");
	c->at[which].own = look().own;
	pthread_barrier_wait(&board->barrier);
}

static void crowd_body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static const uint64_t dims[1] = {NUMBERS};
	static float x[NUMBERS];
	const gradcomp_tensor_desc desc = {.name = "w", .dims = dims, .ndim = 1};
	const gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "none"};
	gradcomp_reducer *reducers[REDUCERS];
	gradcomp_error err = {0};
	gradcomp_status st = GRADCOMP_OK;
	count_crowd(room, 0, board);
	for (int i = 0; i < REDUCERS; i++) {
		st = gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &reducers[i], &err);
		if (!st)
			st = gradcomp_reducer_ready(reducers[i], 0, x, &err);
		if (!st)
			st = gradcomp_reducer_wait(reducers[i], &err);
		if (st) {
			fprintf(stderr, "scaling: rank %d: %s\n", rank, err.text);
			exit(1);
		}
		if (!i)
			count_crowd(room, 1, board);
	}
	count_crowd(room, 2, board);
	for (int i = 0; i < REDUCERS; i++)
		gradcomp_reducer_free(reducers[i]);
}

static int measure_reducers(int P, const char *const *settings, FILE *json, int *rows)
{
	process_board *b = run_processes(P, settings, crowd_body, sizeof(crowd));
	if (!b) {
		fprintf(stderr, "scaling: %d processes cannot be started\n", P);
		return 1;
	}
	for (int k = 0; k < 3; k++) {
		const crowd *c = process_room(b, P - 1);
		int n = k == 2 ? REDUCERS : k;
		printf("%6d %2d reducers: %2d threads, RSS %.2f MB, PSS %.2f MB, private %.2f MB\n", P, n,
		       c->at[k].threads, c->at[k].resident / 1e6, c->at[k].shared_out / 1e6, c->at[k].own / 1e6);
		if (json)
			fprintf(json,
			        "%s {\"ranks\": %d, \"reducers\": %d, \"threads\": %d, \"rss\": %.0f, \"pss\": %.0f, \"private\": %.0f}",
			        (*rows)++ ? ",\n" : "", P, n, c->at[k].threads, c->at[k].resident, c->at[k].shared_out,
			        c->at[k].own);
	}
	fflush(stdout);
	end_processes(b);
	return 0;
}

static int measure_kill(int P, const char *const *settings, FILE *json, int *rows)
{
	killed_rank k;
	if (kill_a_rank(P, settings, &k)) {
		fprintf(stderr, "scaling: %d processes cannot be started, or are too few\n", P);
		return 1;
	}
	printf("%6d killed: %d of %d name it, half of them after %.4f s, the last after %.4f s\n", P, k.named, k.others,
	       k.half, k.last);
	fflush(stdout);
	if (json)
		fprintf(json,
		        "%s {\"ranks\": %d, \"what\": \"killed\", \"named\": %d, \"half_s\": %.6f, \"last_s\": %.6f}",
		        (*rows)++ ? ",\n" : "", P, k.named, k.half, k.last);
	return k.named != k.others;
}

static void row(FILE *json, int *rows, int P, const char *what, double first, double again, const usage *all)
{
	usage most = {0}, sum = {0};
	for (int r = 0; r < P; r++) {
		const usage *u = &all[r];
		sum.own += u->own;
		sum.cpu += u->cpu;
		most.own = u->own > most.own ? u->own : most.own;
		most.fds = u->fds > most.fds ? u->fds : most.fds;
		most.sockets = u->sockets > most.sockets ? u->sockets : most.sockets;
	}
	printf("%6d %-14s %10.4f %10.4f %10.2f %10.2f %6d %8d %9.2f\n", P, what, first, again, sum.own / P / 1e6,
	       most.own / 1e6, most.fds, most.sockets, sum.cpu);
	fflush(stdout);
	if (json)
		fprintf(json,
		        "%s {\"ranks\": %d, \"what\": \"%s\", \"first_s\": %.6f, \"again_s\": %.6f, \"mean_bytes\": %.0f, "
		        "\"most_bytes\": %.0f, \"descriptors\": %d, \"sockets\": %d, \"cpu_s\": %.6f}",
		        (*rows)++ ? ",\n" : "", P, what, first, again, sum.own / P, most.own, most.fds, most.sockets,
		        sum.cpu);
}

/* One job, of one collective: what it leaves behind is not another's. */
static int measure(int P, const char *const *settings, FILE *json, int *rows)
{
	process_board *b = run_processes(P, settings, body, sizeof(rank_result));
	usage *u = calloc((size_t)P, sizeof *u);
	double joining = 0;
	int failed = 0;
	if (!b || !u) {
		fprintf(stderr, "scaling: %d processes cannot be started\n", P);
		free(u);
		return 1;
	}
	for (int r = 0; r < P; r++) {
		const process_slot *s = &b->slot[r];
		const rank_result *at = process_room(b, r);
		joining = s->joining > joining ? s->joining : joining;
		u[r] = at->joined;
		if (WIFSIGNALED(s->status))
			fprintf(stderr, "scaling: rank %d of %d was ended by signal %d\n", r, P, WTERMSIG(s->status));
		/* The news of a failure names its rank; what that rank says itself is another text. */
		if (!s->left && (failed++ < 1 || !strstr(at->err.text, "was waiting")))
			fprintf(stderr, "scaling: rank %d of %d: %s; in a collective: %s\n", r, P, s->error.text,
			        at->err.text);
	}
	if (!failed && !present)
		row(json, rows, P, "join", joining, 0, u);
	for (int k = 0; k < 2 && !failed; k++) {
		char what[80];
		double first = 0, again = 0;
		int wrong = 0;
		for (int r = 0; r < P; r++) {
			const view *v = &((const rank_result *)process_room(b, r))->seen[k];
			first = v->first > first ? v->first : first;
			again = v->again > again ? v->again : again;
			wrong += v->failed;
			u[r] = v->at;
			u[r].cpu -= k ? ((const rank_result *)process_room(b, r))->seen[0].at.cpu
			              : ((const rank_result *)process_room(b, r))->joined.cpu;
		}
		snprintf(what, sizeof what, "%s%s", names[present], k ? ", coded" : "");
		if (first > 0)
			row(json, rows, P, what, first, again, u);
		if (wrong)
			fprintf(stderr, "scaling: %s on %d ranks was wrong on some\n", what, P);
		failed += wrong;
	}
	free(u);
	end_processes(b);
	return failed != 0;
}

int main(int argc, char **argv)
{
	char path[4200], exe[4096], allow[64] = "transport.allow=tcp";
	const char *settings[] = {"transport.timeout=120", "transport.wait_timeout=200", "gradcomp.log=error", allow,
	                          NULL};
	int ranks[16] = {2, 8, 32, 128, 512}, n = 0, rows = 0, status = 0, kills = 0, crowds = 0;
	gradcomp_error err = {0};
	FILE *json = NULL;
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		if (!strcmp(argv[i], "--json") && *value)
			json = fopen(argv[++i], "w");
		else if (!strcmp(argv[i], "--links") && *value)
			snprintf(allow, sizeof allow, "transport.allow=%s", argv[++i]);
		else if (!strcmp(argv[i], "--collectives") && *value)
			only = argv[++i];
		else if (!strcmp(argv[i], "--kill"))
			kills = 1;
		else if (!strcmp(argv[i], "--reducers"))
			crowds = 1;
		else if (n < 16 && (ranks[n] = atoi(argv[i])) > 0)
			n++;
		else {
			fputs("usage: scaling [--json FILE] [--links LIST] [--collectives NAME,...] [--kill | --reducers] [RANKS...]\n",
			      stderr);
			return 2;
		}
	}
	ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
	exe[length > 0 ? length : 0] = 0;
	for (int up = 0; length > 0 && up < 2; up++)
		*strrchr(exe, '/') = 0;
	snprintf(path, sizeof path, "%s/lib/gradcomp", exe);
	setenv("GRADCOMP_PLUGIN_PATH", path, 0);
	if (gradcomp_plugin_each(GRADCOMP_KIND_COLLECTIVE, note, NULL, &err) < 0) {
		fprintf(stderr, "scaling: %s\n", err.text);
		return 1;
	}
	if (!kills && !crowds)
		printf("%6s %-14s %10s %10s %10s %10s %6s %8s %9s\n", "ranks", "", "first s", "again s", "MB a rank",
		       "MB at most", "fds", "sockets", "CPU s");
	if (json)
		fputs("[\n", json);
	for (int k = 0; k < (n ? n : 5) && !status; k++)
		if (crowds)
			status = measure_reducers(ranks[k], settings, json, &rows);
		else if (kills)
			status = measure_kill(ranks[k], settings, json, &rows);
		else
			for (present = 0; present < nnames && !status; present++)
				status = measure(ranks[k], settings, json, &rows);
	if (json && (fputs("\n]\n", json) < 0 || fclose(json)))
		status = 1;
	return status;
}
