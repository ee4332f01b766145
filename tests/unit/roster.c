/* Hundreds of ranks agree on who is left, as threads of one process: through others, past ranks that are gone or
 * silent, after a leader that was lost half-way, and never as two jobs. TEST_RANKS=1000: one agreement, and its
 * time. */
#include "survivors/roster_internal.h"

#include "base/thread.h"
#include "tests/support/pace.h"
#include "tests/support/tap.h"
#include "tests/support/test_random.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint32_t below(size_t n)
{
	return draw_up_to((uint32_t)n) - 1;
}

enum { ALIVE, GONE, SILENT }; /* SILENT: connections are taken, and nothing is said */

typedef struct rank {
	roster *m;
	int kind, port, silent_fd;
	pthread_t thread;
	gradcomp_status st;
	roster_view view;
	gradcomp_error err;
	double done, late;
} rank;

typedef struct world {
	int n;
	transport *t; /* one rank's: its keys are everybody's */
	rank *r;
	char (*records)[TRANSPORT_ENDPOINT_MAX];
	const char **endpoints;
	double began;
} world;

static void open_world(world *w, int n, int per_node)
{
	transport_options o = {.nranks = 1,
	                       .timeout = 30,
	                       .wait_timeout = 60,
	                       .streams = 1,
	                       .chunk = CHUNK_MIN,
	                       .interface = "lo",
	                       .allow = "tcp"};
	gradcomp_error err = {0};
	unsigned char secret[TRANSPORT_SECRET_BYTES] = {1, 2, 3};
	*w = (world){.n = n,
	             .r = calloc((size_t)n, sizeof *w->r),
	             .records = calloc((size_t)n, sizeof *w->records),
	             .endpoints = calloc((size_t)n, sizeof *w->endpoints)};
	if (transport_listen(&o, &w->t, &err) ||
	    transport_start(w->t, (const char *[]){transport_endpoint(w->t)}, secret, &err))
		printf("# %s\n", err.text);
	for (int r = 0; r < n; r++) {
		uint16_t port;
		snprintf(w->records[r], sizeof w->records[r], "gc1 host=n%d node=k%d cpus= unix= tcp=127.0.0.1/8@1",
		         r / per_node, r / per_node);
		w->endpoints[r] = w->records[r];
		roster_listen(&w->r[r].port, &w->r[r].m, &err);
		w->r[r].silent_fd = address_listen("", &port);
	}
}

static int port_of(int fd)
{
	struct sockaddr_storage sa;
	socklen_t bytes = sizeof sa;
	if (getsockname(fd, (struct sockaddr *)&sa, &bytes))
		return 0;
	return sa.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&sa)->sin6_port)
	                                : ntohs(((struct sockaddr_in *)&sa)->sin_port);
}

/* Ranks below and from `cut` on do not reach each other; 0: all do. */
static void begin_world(world *w, int cut)
{
	int *ports = calloc((size_t)w->n, sizeof *ports);
	gradcomp_error err = {0};
	for (int r = 0; r < w->n; r++) {
		if (w->r[r].kind == GONE) {
			roster_close(w->r[r].m);
			w->r[r].m = NULL;
			continue;
		}
		for (int to = 0; to < w->n; to++)
			ports[to] = w->r[to].kind == SILENT || (cut && (r < cut) != (to < cut))
			                    ? port_of(w->r[to].silent_fd)
			                    : w->r[to].port;
		if (roster_begin(w->r[r].m, w->t, r, w->n, w->endpoints, ports, NULL, &err))
			printf("# rank %d: %s\n", r, err.text);
		roster_watch(w->r[r].m, NULL);
	}
	free(ports);
	w->began = clock_now();
}

static void *agree(void *arg)
{
	rank *r = arg;
	usleep((useconds_t)(r->late * 1e6));
	r->st = roster_agree(r->m, 60, &r->view, &r->err);
	r->done = clock_now();
	return NULL;
}

static void agree_all(world *w)
{
	for (int r = 0; r < w->n; r++)
		if (w->r[r].kind == ALIVE && thread_start(&w->r[r].thread, agree, &w->r[r]))
			printf("# no thread for rank %d\n", r);
	for (int r = 0; r < w->n; r++)
		if (w->r[r].kind == ALIVE)
			pthread_join(w->r[r].thread, NULL);
}

/* Returns 1 when all that live, from `first` to `last`, have the one view that has those for which `in` is true. */
static int one_view(const world *w, int first, int last, int (*in)(const world *w, int r))
{
	const roster_view *v = NULL;
	int want = 0, good = 1;
	for (int r = 0; r < w->n; r++)
		want += in(w, r);
	for (int r = first; r < last; r++) {
		const rank *k = &w->r[r];
		if (k->kind != ALIVE || !in(w, r))
			continue;
		v = v ? v : &k->view;
		if (k->st || k->view.n != want || memcmp(k->view.nonce, v->nonce, sizeof v->nonce)) {
			printf("# rank %d: status %d, %d ranks of %d: %s\n", r, k->st, k->view.n, want, k->err.text);
			good = 0;
		}
		for (int i = 0; i < k->view.n; i++)
			good &= in(w, k->view.ranks[i]);
	}
	return good && v;
}

static double longest(const world *w)
{
	double most = 0;
	for (int r = 0; r < w->n; r++)
		most = w->r[r].done - w->began > most ? w->r[r].done - w->began : most;
	return most;
}

static void close_world(world *w)
{
	for (int r = 0; r < w->n; r++) {
		roster_view_clear(&w->r[r].view);
		roster_close(w->r[r].m);
		close(w->r[r].silent_fd);
	}
	transport_stop(w->t, NULL);
	free(w->r);
	free(w->records);
	free(w->endpoints);
}

static int lives(const world *w, int r)
{
	return w->r[r].kind == ALIVE;
}

static double processor_seconds(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void lost(int n, int gone, int silent, int leader, const char *name)
{
	world w;
	uint64_t calls = 0, bytes = 0, all = 0;
	double used;
	int who = 0, limit = 0;
	open_world(&w, n, 8);
	for (int i = 0; i < gone + silent;) {
		int r = i || !leader ? 1 + (int)(draw_up_to((uint32_t)n - 1) - 1) : 0;
		if (w.r[r].kind != ALIVE)
			continue;
		w.r[r].kind = i++ < gone ? GONE : SILENT;
	}
	begin_world(&w, 0);
	used = processor_seconds();
	agree_all(&w);
	used = processor_seconds() - used;
	ok(one_view(&w, 0, n, lives), "%d ranks, %s: one view of all that live", n, name);
	for (int r = 0; r < n; r++) {
		uint64_t c = 0, b = 0;
		if (w.r[r].m)
			roster_stats(w.r[r].m, &c, &b);
		if (c > calls)
			who = r;
		all += c;
		calls = c > calls ? c : calls;
		bytes = b > bytes ? b : bytes;
	}
	while (limit * limit < n)
		limit++;
	printf("# %d gone, %d silent: %.3f s; rank %d asked most: %llu calls of %llu; most bytes %llu; %.0f us of processor time a call\n",
	       gone, silent, longest(&w), who, (unsigned long long)calls, (unsigned long long)all,
	       (unsigned long long)bytes, used * 1e6 / (double)all);
	/* Rounds: some to prepare, until all have come; accept; commit. A busy machine makes more of them. */
	if (n > ROSTER_DIRECT && !silent && gone < 4)
		ok(in_time((double)calls, 12 * limit), "nobody asks many: %llu of %d", (unsigned long long)calls, n);
	close_world(&w);
}

static int upper(const world *w, int r)
{
	return w->r[r].kind == ALIVE && r != 5;
}

/* Rank 0 has asked, and is lost: before anybody has accepted, or when `accepted` have. */
static void leader_lost(int n, int accepted)
{
	world w;
	roster_message q = {.type = ROSTER_PREPARE, .ballot = (uint64_t)1 << 32 | 1}, tally = {0};
	roster_blob set = {0};
	roster_view v = {.epoch = 1, .ranks = calloc((size_t)n, sizeof(int)), .nonce = {7}};
	open_world(&w, n, 1);
	begin_world(&w, 0);
	for (int r = 0; r < n; r++) {
		roster_bit_set(&set, n, r);
		if (r && r != 5)
			v.ranks[v.n++] = r;
	}
	for (int r = 1; r < n; r++)
		thread_start(&w.r[r].thread, agree, &w.r[r]);
	do {
		roster_message_clear(&tally);
		roster_ask(w.r[0].m, &w.r[0].m->view, &set, &q, 1, false, &tally);
	} while (tally.late.p && tally.late.bytes && (usleep(1000), roster_bit(&tally.late, n - 1)));
	q.type = ROSTER_ACCEPT;
	roster_view_write(&v, n, &q.value);
	set.p = memset(set.p, 0, set.bytes);
	for (int r = n - accepted; r < n; r++)
		roster_bit_set(&set, n, r);
	roster_message_clear(&tally);
	if (accepted)
		roster_ask(w.r[0].m, &w.r[0].m->view, &set, &q, 1, false, &tally);
	w.began = clock_now();
	roster_close(w.r[0].m);
	w.r[0].m = NULL;
	for (int r = 1; r < n; r++)
		pthread_join(w.r[r].thread, NULL);
	w.r[0].kind = GONE;
	if (accepted) {
		ok(one_view(&w, 1, n, upper) && w.r[1].view.nonce[0] == 7,
		   "a leader lost when most had accepted: the next one decides what they had");
		ok(w.r[5].st == GRADCOMP_ERR_PEER && strstr(w.r[5].err.text, "rank 5 on n5 was given up by the others"),
		   "and who was left out is told: %s", w.r[5].err.text);
	} else {
		ok(one_view(&w, 1, n, lives),
		   "a leader lost before anybody had accepted: the next one decides without it");
	}
	printf("# %.3f s after it was lost\n", longest(&w));
	free(v.ranks);
	free(set.p);
	roster_message_clear(&q);
	roster_message_clear(&tally);
	close_world(&w);
}

static int first_half(const world *w, int r)
{
	return r < w->n / 2;
}

static void cut(int n)
{
	world w;
	int ended = 0;
	open_world(&w, n, 1);
	begin_world(&w, n / 2);
	agree_all(&w);
	ok(one_view(&w, 0, n / 2, first_half), "a network cut in halves: that with rank 0 goes on, as one job");
	for (int r = n / 2; r < n; r++)
		ended += w.r[r].st == GRADCOMP_ERR_PEER && strstr(w.r[r].err.text, "which is no majority");
	is_int(ended, n / 2, "and all ranks of the other end: %s", w.r[n - 1].err.text);
	close_world(&w);
}

static void late(int n)
{
	world w;
	open_world(&w, n, 1);
	w.r[3].kind = GONE;
	w.r[n - 1].late = w.r[0].late = 0.3;
	begin_world(&w, 0);
	agree_all(&w);
	ok(one_view(&w, 0, n, lives), "ranks that come late are waited for");
	close_world(&w);
}

/* Mutants of messages: none is read beyond its end, and what is read is written as it was. */
static void hostile(void)
{
	roster_view v = {.epoch = 3, .n = 2, .ranks = (int[]){1, 8}}, got;
	roster_blob set = {0}, asked = {0};
	unsigned long wrong = 0;
	roster_bit_set(&set, 9, 8);
	roster_bit_set(&asked, 9, 1);
	for (int k = 0; k < 20000; k++) {
		roster_message q = {.type = 1 + below(5), .epoch = 2, .ballot = 5, .set = set}, r, tally = {.epoch = 2};
		roster_blob bytes, exact;
		roster_view_write(&v, 9, &q.value);
		roster_view_write(&v, 9, &q.view);
		if (k % 2)
			q.view.p[below(q.view.bytes)] ^= (unsigned char)(1u << below(8));
		roster_message_write(&q, &bytes);
		for (unsigned i = below(4); i > 0; i--)
			bytes.p[below(bytes.bytes)] = (unsigned char)below(256);
		/* A copy of just its size lets a sanitizer see what is read behind it. */
		exact.bytes = below(4) ? bytes.bytes : below(bytes.bytes + 1);
		exact.p = malloc(exact.bytes + !exact.bytes);
		memcpy(exact.p, bytes.p, exact.bytes);
		if (!roster_message_read(&exact, &r)) {
			if (!roster_view_read(&r.view, 9, &got)) {
				for (int i = 0; i < got.n; i++)
					wrong += got.ranks[i] < 0 || got.ranks[i] > 8 ||
					         (i && got.ranks[i] <= got.ranks[i - 1]);
				roster_view_clear(&got);
			}
			roster_tally_add(&tally, &r, &asked);
			for (int i = 0; i < 9; i++)
				wrong += i != 1 && (roster_bit(&tally.set, i) || roster_bit(&tally.late, i));
			roster_message_clear(&tally);
			roster_message_clear(&r);
		}
		free(exact.p);
		free(bytes.p);
		free(q.value.p);
		free(q.view.p);
	}
	is_int(wrong, 0, "damaged messages say nothing of ranks that were not asked");
	free(set.p);
	free(asked.p);
}

int main(void)
{
	const char *ranks = getenv("TEST_RANKS"), *gone = getenv("TEST_GONE");
	struct rlimit files;
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	if (ranks) {
		int n = atoi(ranks);
		if (n < 2) {
			puts("Bail out! TEST_RANKS is below 2");
			return 1;
		}
		for (int k = 0; k < 3; k++)
			lost(n, gone ? atoi(gone) : 1, 0, k == 2, k == 2 ? "the first lost" : "some lost");
		return done_testing();
	}
	hostile();
	lost(2, 1, 0, 0, "one lost");
	lost(9, 3, 1, 1, "four lost, one of them silent");
	lost(150, 1, 0, 0, "one lost");
	lost(150, 1, 0, 1, "the first lost");
	lost(150, 40, 0, 1, "forty lost");
	lost(150, 10, 5, 0, "fifteen lost, five of them silent");
	late(20);
	leader_lost(70, 0);
	leader_lost(70, 60);
	cut(8);
	return done_testing();
}
