/* A dataset whose ranks keep fewer connections than there are nodes: values come from everywhere, in any order, and no
 * rank has more connections than it may. Nodes are those that the ranks' endpoint records name. */
#include "tests/support/dataset_fixture.h"
#include "tests/support/pace.h"
#include "tests/support/test_random.h"
#include "io/dataset/net/service.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { P = 5, COUNT = 400, ALONE = 100, TOGETHER = 150, DIES = 2 };

static const int nodes[P] = {0, 1, 2, 3, 4};
static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL, NULL, NULL};
static unsigned limit;
static uint64_t seed;

typedef struct counted {
	dataset_result v;
	unsigned alone, most, rest;
} counted;

static gradcomp_dataset *begin(gradcomp_job *job, dataset_result *v)
{
	gradcomp_dataset_options o = samples_options(COUNT);
	gradcomp_dataset *ds = NULL;
	o.seed = seed;
	v->wrong |= gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0;
	return ds;
}

/* Any samples, some of them announced. */
static int pick(gradcomp_dataset *ds, int n, gradcomp_error *err)
{
	int wrong = 0;
	while (n > 0 && !wrong) {
		uint64_t soon[8];
		uint64_t many = draw_up_to(8), told = draw() < 0.5 ? many : 0;
		for (uint64_t i = 0; i < many; i++)
			soon[i] = draw_up_to(COUNT) - 1;
		wrong |= gradcomp_dataset_expect(ds, soon, told, err) != 0;
		for (uint64_t i = 0; i < many && !wrong; i++, n--) {
			gradcomp_value_view v = {.struct_size = sizeof v};
			wrong |= gradcomp_dataset_get(ds, soon[i], &v, err) != 0 || !sample_right(&v, soon[i]);
			gradcomp_dataset_release(ds, &v);
		}
	}
	return wrong;
}

/* How many there are when nothing goes on. */
static unsigned at_rest(gradcomp_dataset *ds)
{
	double until = process_now() + 5 * pace();
	while (atomic_load(&ds->service->nlinks) > limit && process_now() < until)
		usleep(2000);
	return atomic_load(&ds->service->nlinks);
}

static void body(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_group *world = gradcomp_job_world(job);
	counted *c = room;
	dataset_result *v = &c->v;
	gradcomp_dataset *ds = begin(job, v);
	(void)b;
	if (!ds)
		return;
	draw_state = seed * P + (uint64_t)rank;
	/* One after another: nobody else has a use for the connections. */
	for (int turn = 0; turn < P && !v->wrong; turn++) {
		v->wrong |= gradcomp_barrier(world, &v->error) != 0;
		if (turn == rank) {
			/* The values that the one before offered have come. */
			usleep((useconds_t)(30000 * pace()));
			at_rest(ds);
			atomic_store(&ds->service->nlinks_most, 0);
			v->wrong |= pick(ds, ALONE, &v->error) << 1;
			c->alone = atomic_load(&ds->service->nlinks_most);
		}
	}
	v->wrong |= (!v->wrong && gradcomp_barrier(world, &v->error)) << 2;
	v->wrong |= (!v->wrong && pick(ds, TOGETHER, &v->error)) << 3;
	for (uint64_t e = 0; e < 2 && !v->wrong; e++)
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << 4;
	v->wrong |= (!v->wrong && gradcomp_barrier(world, &v->error)) << 5;
	c->rest = at_rest(ds);
	c->most = atomic_load(&ds->service->nlinks_most);
	v->wrong |= (!v->wrong && gradcomp_barrier(world, &v->error)) << 6;
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 7;
}

static void keep(unsigned n, const char *more)
{
	static char setting[64];
	unsigned alone = 0, rest = 0, most = 0;
	snprintf(setting, sizeof setting, "dataset.connections=%u", limit = n);
	settings[3] = setting;
	settings[4] = more;
	samples_forget();
	process_board *b = run_processes(P, settings, body, sizeof(counted));
	for (int r = 0; b && r < P; r++) {
		const counted *c = process_room(b, r);
		alone = c->alone > alone ? c->alone : alone;
		rest = c->rest > rest ? c->rest : rest;
		most = c->most > most ? c->most : most;
	}
	ok(all_well(b), "%u connections, %s: right in any order, one rank after another and all together", n,
	   more ? more : "one stream");
	ok(alone > 0 && alone <= n && rest <= n,
	   "it had %u when it asked alone, %u in the end, and up to %u with those that asked it", alone, rest, most);
	end_processes(b);
}

static uint64_t first_of(const gradcomp_dataset *ds, int node)
{
	sample_owner at = {.node = -1};
	uint64_t index = 0;
	for (; owner_of(ds, index, &at), at.node != node; index++)
		;
	return index;
}

typedef struct getting {
	gradcomp_dataset *ds;
	uint64_t index;
	int wrong;
} getting;

static void *get_thread(void *arg)
{
	getting *g = arg;
	gradcomp_value_view v = {.struct_size = sizeof v};
	g->wrong = gradcomp_dataset_get(g->ds, g->index, &v, NULL) != 0;
	gradcomp_dataset_release(g->ds, &v);
	return NULL;
}

/* Rank 0 loads a value of the last node itself. Before it can offer it, its one connection is that to node 1, which
 * takes long to load another value, and asks for something all the while. */
static void late_offer(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_group *world = gradcomp_job_world(job);
	counted *c = room;
	gradcomp_dataset *ds = begin(job, &c->v);
	gradcomp_value_view v = {.struct_size = sizeof v};
	pthread_t thread;
	(void)b;
	if (!ds)
		return;
	getting own = {.ds = ds, .index = first_of(ds, 0)}, offered = {.ds = ds, .index = first_of(ds, P - 1)};
	if (!rank)
		get_thread(&own);
	c->v.wrong |= (own.wrong || gradcomp_barrier(world, &c->v.error) != 0) << 1;
	if (!rank) {
		atomic_store(&all_samples->slow_ms, 400);
		c->v.wrong |= pthread_create(&thread, NULL, get_thread, &offered) << 2;
		usleep(200000);
		atomic_store(&all_samples->slow_ms, 3000);
		c->v.wrong |= (view_value_obtain(ds, first_of(ds, 1), TICKET_ORDERED, &v, &c->v.error) != 0) << 3;
		gradcomp_dataset_release(ds, &v);
		atomic_store(&all_samples->go, 1);
		pthread_join(thread, NULL);
	}
	/* Not in a barrier: that has the same time limit. */
	for (; rank && !own.wrong && !atomic_load(&all_samples->go); usleep(10000))
		if (rank == 1)
			get_thread(&own);
	c->v.wrong |= (own.wrong || offered.wrong) << 4;
	c->v.wrong |= (gradcomp_barrier(world, &c->v.error) != 0) << 5;
	c->v.wrong |= (gradcomp_dataset_free(ds, c->v.wrong ? NULL : &c->v.error) != 0) << 6;
}

static void offer_late(void)
{
	settings[3] = "dataset.connections=1";
	settings[4] = "transport.wait_timeout=1";
	samples_forget();
	process_board *b = run_processes(P, settings, late_offer, sizeof(counted));
	ok(all_well(b), "a node that is to be offered a value, but has no connection, owes nothing");
	end_processes(b);
}

static void lose(gradcomp_job *job, int rank, process_board *b, void *room)
{
	counted *c = room;
	gradcomp_dataset *ds = begin(job, &c->v);
	double until = process_now() + 30 * pace();
	(void)b;
	if (!ds)
		return;
	draw_state = seed * P + (uint64_t)rank + 1000;
	if (rank == DIES) {
		c->v.wrong |= pick(ds, TOGETHER, &c->v.error);
		raise(SIGKILL);
	}
	while (!pick(ds, 10, &c->v.error) && process_now() < until)
		;
	c->v.status = c->v.error.status;
	gradcomp_dataset_free(ds, NULL);
}

static void die(void)
{
	static char named[32];
	int well = 1;
	snprintf(named, sizeof named, "rank %d on ", DIES);
	settings[3] = "dataset.connections=1";
	settings[4] = NULL;
	samples_forget();
	process_board *b = run_processes(P, settings, lose, sizeof(counted));
	for (int r = 0; b && r < P; r++) {
		const counted *c = process_room(b, r);
		if (r != DIES && (c->v.wrong || c->v.status != GRADCOMP_ERR_PEER || !strstr(c->v.error.text, named))) {
			printf("# rank %d: wrong %d, %s\n", r, c->v.wrong, c->v.error.text);
			well = 0;
		}
	}
	ok(well, "a rank that dies amid connections that come and go is named by all others");
	end_processes(b);
}

typedef struct crowd {
	gradcomp_dataset *ds;
	int node;
	atomic_bool stop;
	atomic_int wrong;
} crowd;

/* A sample of a node, at random. */
static uint64_t sample_of(const gradcomp_dataset *ds, int node, uint64_t *state)
{
	sample_owner at;
	uint64_t index;
	do {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		index = (*state >> 33) % COUNT;
		owner_of(ds, index, &at);
	} while (at.node != node);
	return index;
}

static int get_one(gradcomp_dataset *ds, uint64_t index, gradcomp_error *err)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	int wrong = gradcomp_dataset_get(ds, index, &v, err) != 0 || !sample_right(&v, index);
	gradcomp_dataset_release(ds, &v);
	return wrong;
}

static void *press(void *arg)
{
	crowd *c = arg;
	uint64_t state = (uint64_t)(uintptr_t)&state;
	while (!atomic_load(&c->stop) && !atomic_load(&c->wrong))
		if (get_one(c->ds, sample_of(c->ds, c->node, &state), NULL))
			atomic_store(&c->wrong, 1);
	return NULL;
}

enum { CROWD = 3, SELDOM = 30 };
#define SELDOM_SECONDS 1.0 /* for all of them: each takes a millisecond */

static void beside(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_group *world = gradcomp_job_world(job);
	counted *c = room;
	gradcomp_dataset *ds = begin(job, &c->v);
	crowd many = {.ds = ds, .node = 1};
	pthread_t threads[CROWD];
	uint64_t state = seed;
	double until;
	(void)b;
	if (!ds)
		return;
	/* All is loaded. */
	c->v.wrong |= samples_epoch(ds, 0, 0, &c->v.error);
	c->v.wrong |= (gradcomp_barrier(world, &c->v.error) != 0) << 1;
	for (int i = 0; !rank && i < CROWD; i++)
		c->v.wrong |= pthread_create(&threads[i], NULL, press, &many) << 2;
	usleep(rank ? 0 : 50000);
	until = process_now() + SELDOM_SECONDS * pace();
	for (; !rank && !c->v.wrong && c->alone < SELDOM && process_now() < until; c->alone++)
		c->v.wrong |= get_one(ds, sample_of(ds, P - 1, &state), &c->v.error) << 3;
	atomic_store(&many.stop, true);
	for (int i = 0; !rank && i < CROWD; i++)
		pthread_join(threads[i], NULL);
	c->v.wrong |= atomic_load(&many.wrong) << 4;
	c->v.wrong |= (gradcomp_barrier(world, &c->v.error) != 0) << 5;
	c->v.wrong |= (gradcomp_dataset_free(ds, c->v.wrong ? NULL : &c->v.error) != 0) << 6;
}

static void take_turns(void)
{
	settings[3] = "dataset.connections=1";
	settings[4] = NULL;
	samples_forget();
	process_board *b = run_processes(P, settings, beside, sizeof(counted));
	unsigned got = b ? ((const counted *)process_room(b, 0))->alone : 0;
	ok(all_well(b) && got == SELDOM,
	   "a node that is wanted seldom has its turn beside one that is wanted all the time: %u of %d values came",
	   got, SELDOM);
	end_processes(b);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	processes_on(nodes);
	seed = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 10) : (uint64_t)time(NULL);
	printf("# TEST_SEED=%llu\n", (unsigned long long)seed);

	keep(1, NULL);
	keep(2, NULL);
	keep(1, "transport.streams=3");
	keep(1, "security.frames=encrypt");
	take_turns();
	offer_late();
	die();
	return done_testing();
}
