/* A rank that says to another's service what it must not: the job ends, naming it. */
#include "tests/support/dataset_fixture.h"
#include "io/dataset/service.h"
#include "job/job.h"

typedef struct lie {
	const char *name, *answer;
	header h;
	request_item items[1];
	int follows;
} lie;

enum { SAMPLES = 40, MINE, THEIRS };

static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL};
static const int two_nodes[] = {0, 1};
static const lie *lying;

/* MINE and THEIRS stand for samples that the liar's node owns, and the other. */
static const lie lies[] = {
	{"a message of no type", "unknown type", {.type = 99}, {{0}}, 0},
	{"a request for nothing", "too many samples", {.type = MSG_REQUEST}, {{0}}, 0},
	{"a request for 257 samples", "too many samples", {.type = MSG_REQUEST, .n = REQUEST_ITEMS_MAX + 1}, {{0}}, 0},
	{"a request for a sample there is not", "does not own", {.type = MSG_REQUEST, .n = 1}, {{.index = 1u << 20}}, 1},
	{"a request for another node's sample", "does not own", {.type = MSG_REQUEST, .n = 1}, {{.index = MINE}}, 1},
	{"a reply to nothing", "no request", {.type = MSG_REPLY, .n = 1, .id = 3}, {{0}}, 0},
	{"a reply to block 2^40", "no request", {.type = MSG_REPLY, .n = 1, .id = (uint64_t)1 << 40}, {{0}}, 0},
	{"a note of a ticket there is not", "does not exist", {.type = MSG_NOTIFY, .n = 1, .id = (uint64_t)1 << 40}, {{0}}, 0},
	{"an offer of a sample of its own",
         "does not own",
         {.type = MSG_OFFER, .id = 1, .index = MINE, .bytes = 1},
         {{0}},
         0},
	{"an answer to no offer", "not made", {.type = MSG_TAKE, .id = 5}, {{0}}, 0},
	{"a value that was not accepted",
         "not accepted",
         {.type = MSG_PUSH, .id = 1, .index = THEIRS, .bytes = 1},
         {{0}},
         0},
	{"damage of a sample there is not", "does not own", {.type = MSG_DAMAGED, .index = ~(uint64_t)0}, {{0}}, 0},
};

static uint64_t sample_of(const gradcomp_dataset *ds, uint64_t name)
{
	sample_owner at;
	for (uint64_t i = 0; i < SAMPLES && (name == MINE || name == THEIRS); i++) {
		owner_of(ds, i, &at);
		if (at.rank == (name == MINE))
			return i;
	}
	return name;
}

static void body(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	gradcomp_value_view view = {.struct_size = sizeof view};
	gradcomp_request rq[2];
	dataset_result *v = room;
	lie l = *lying;
	gradcomp_dataset *ds;
	(void)b;
	if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error)) {
		v->wrong = 1;
		return;
	}
	if (rank) {
		const gradcomp_links *links = channel_links(ds->channel);
		service_stop(ds);
		l.h.index = sample_of(ds, l.h.index);
		l.items[0].index = sample_of(ds, l.items[0].index);
		links->send(links->ctx, 0, &l.h, sizeof l.h, &rq[0], NULL);
		if (l.follows)
			links->send(links->ctx, 0, l.items, sizeof l.items, &rq[1], NULL);
		while (!channel_pause(ds->channel, -1, 1, &v->error))
			;
		v->status = v->error.status;
	} else {
		/* Values of its own, which it has without asking anybody. */
		uint64_t index = sample_of(ds, THEIRS);
		double begin = process_now();
		while (!(v->status = gradcomp_dataset_get(ds, index, &view, &v->error)) &&
		       process_now() - begin < 20) {
			gradcomp_dataset_release(ds, &view);
			usleep(500);
		}
	}
	gradcomp_dataset_free(ds, NULL);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	processes_on(two_nodes);
	for (size_t k = 0; k < sizeof lies / sizeof lies[0]; k++) {
		lying = &lies[k];
		process_board *b = run_processes(2, settings, body, sizeof(dataset_result));
		const dataset_result *v = process_room(b, 0), *liar = process_room(b, 1);
		ok(v->status == GRADCOMP_ERR_MISMATCH && liar->status == GRADCOMP_ERR_MISMATCH && !v->wrong,
		   "%s ends the job on both sides", lying->name);
		like(v->error.text, "rank 1 on ", "naming who said it");
		like(v->error.text, lying->answer, "and what it was");
		end_processes(b);
	}
	return done_testing();
}
