/* A rank that says to another's service what it must not: the job ends, naming it. */
#include "tests/support/dataset_fixture.h"
#include "tests/support/pace.h"
#include "io/dataset/net/service.h"
#include "job/job.h"

#include <signal.h>
#include <xxhash.h>

typedef struct lie {
	const char *name, *answer;
	header h;
	request_item items[1];
	int follows;
	/* Instead of a single message, what leads up to it. */
	void (*play)(gradcomp_dataset *ds, header h);
} lie;

enum { SAMPLES = 40, MINE, THEIRS };

static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL, NULL, NULL};
static const int two_nodes[] = {0, 1};
static const lie *lying;

static uint64_t sample_of(const gradcomp_dataset *ds, uint64_t name)
{
	sample_owner at;
	for (uint64_t i = 0; i < SAMPLES && (name == MINE || name == THEIRS); i++) {
		owner_of(ds, i, &at);
		if (at.node == (name == MINE))
			return i;
	}
	return name;
}

static void wait_for(gradcomp_dataset *ds, gradcomp_request *rq)
{
	const gradcomp_links *l = channel_links(ds->channel);
	l->wait(l->ctx, rq, NULL);
}

static void post(gradcomp_dataset *ds, const void *buf, size_t bytes)
{
	const gradcomp_links *l = channel_links(ds->channel);
	gradcomp_request rq;
	if (!l->send(l->ctx, 0, buf, bytes, &rq, NULL))
		wait_for(ds, &rq);
}

/* The first header comes where the service that was stopped wants it. */
static header await_header(gradcomp_dataset *ds)
{
	wait_for(ds, &ds->service->peers[0].req);
	return ds->service->peers[0].in;
}

static void await_bytes(gradcomp_dataset *ds, void *buf, size_t bytes)
{
	const gradcomp_links *l = channel_links(ds->channel);
	gradcomp_request rq;
	if (!l->recv(l->ctx, 0, buf, bytes, &rq, NULL))
		wait_for(ds, &rq);
}

/* Waits for what the other's get() asks for. */
static request_item await_request(gradcomp_dataset *ds, header *h)
{
	request_item items[REQUEST_ITEMS_MAX] = {0};
	*h = await_header(ds);
	await_bytes(ds, items, (h->n <= REQUEST_ITEMS_MAX ? h->n : 0) * sizeof items[0]);
	return items[0];
}

/* The ticket is asked for once more, and both answers give it its length. */
static void notify_then_reply(gradcomp_dataset *ds, header h)
{
	header asked;
	request_item item = await_request(ds, &asked);
	reply_item sent = {.bytes = 60, .status = REPLY_SENT};
	unsigned char value[64] = {0};
	h.id = item.ticket;
	h.index = item.index;
	post(ds, &h, sizeof h);
	post(ds, &(header){.type = MSG_REPLY, .n = 1, .id = asked.id}, sizeof h);
	post(ds, &sent, sizeof sent);
	post(ds, value, sizeof value);
}

/* There was space for one byte. */
static void reply_large(gradcomp_dataset *ds, header h)
{
	reply_item large = {.bytes = 1, .status = REPLY_LARGE};
	header asked;
	await_request(ds, &asked);
	h.id = asked.id;
	post(ds, &h, sizeof h);
	post(ds, &large, sizeof large);
}

static uint64_t last_sample(const gradcomp_dataset *ds)
{
	sample_owner at = {.node = 1};
	uint64_t i = SAMPLES;
	while (at.node)
		owner_of(ds, --i, &at);
	return i;
}

/* An offer of 64 bytes is taken, and then another value or more than these pushed. */
static void offer_then_push(gradcomp_dataset *ds, header h)
{
	static const unsigned char value[1 << 16];
	header answer;
	h.index = last_sample(ds);
	post(ds, &(header){.type = MSG_OFFER, .id = 1, .index = h.index, .bytes = 64, .sum = 7}, sizeof h);
	answer = await_header(ds);
	h.id = answer.type == MSG_TAKE ? 1 : 2;
	post(ds, &h, sizeof h);
	post(ds, value, h.bytes);
}

static void never_answer(gradcomp_dataset *ds, header h)
{
	(void)h;
	await_request(ds, &h);
}

static void never_notify(gradcomp_dataset *ds, header h)
{
	reply_item later = {.status = REPLY_LATER};
	await_request(ds, &h);
	post(ds, &(header){.type = MSG_REPLY, .n = 1, .id = h.id}, sizeof h);
	post(ds, &later, sizeof later);
}

static void never_push(gradcomp_dataset *ds, header h)
{
	h.index = last_sample(ds);
	post(ds, &h, sizeof h);
	await_header(ds);
}

/* Both have nothing under way: the other agrees, and waits for the end of the connection. */
static void bye_then(gradcomp_dataset *ds, header h)
{
	post(ds, &(header){.type = MSG_BYE}, sizeof h);
	if (await_header(ds).type == MSG_BYE_OK)
		post(ds, &h, sizeof h);
}

static void bye_then_silence(gradcomp_dataset *ds, header h)
{
	h.type = MSG_BYE;
	post(ds, &h, sizeof h);
	await_header(ds);
}

/* The other's sample is to be loaded for this rank, which cannot leave before it is told. */
static void bye_amid_load(gradcomp_dataset *ds, header h)
{
	request_item item = {.index = last_sample(ds), .flags = TICKET_ORDERED};
	atomic_store(&all_samples->slow_ms, 500);
	post(ds, &(header){.type = MSG_REQUEST, .n = 1, .id = 1, .bytes = 4096}, sizeof h);
	post(ds, &item, sizeof item);
	post(ds, &h, sizeof h);
}

static void bye_amid_offer(gradcomp_dataset *ds, header h)
{
	post(ds, &(header){.type = MSG_OFFER, .id = 1, .index = last_sample(ds), .bytes = 64, .sum = 7}, sizeof h);
	if (await_header(ds).type == MSG_TAKE)
		post(ds, &h, sizeof h);
}

static const char silence[] = "has been silent for ";

/* MINE and THEIRS stand for samples that the liar's node owns, and the other. */
static const lie lies[] = {
	{"a message of no type", "unknown type", {.type = 99}, {{0}}, 0, NULL},
	{"a request for nothing", "too many samples", {.type = MSG_REQUEST}, {{0}}, 0, NULL},
	{"a request for 257 samples",
         "too many samples",
         {.type = MSG_REQUEST, .n = REQUEST_ITEMS_MAX + 1},
         {{0}},
         0,
         NULL},
	{"a request for a sample there is not",
         "does not own",
         {.type = MSG_REQUEST, .n = 1},
         {{.index = 1u << 20}},
         1,
         NULL},
	{"a request for another node's sample",
         "does not own",
         {.type = MSG_REQUEST, .n = 1},
         {{.index = MINE}},
         1,
         NULL},
	{"a reply to nothing", "no request", {.type = MSG_REPLY, .n = 1, .id = 3}, {{0}}, 0, NULL},
	{"a reply to block 2^40", "no request", {.type = MSG_REPLY, .n = 1, .id = (uint64_t)1 << 40}, {{0}}, 0, NULL},
	{"a note of a ticket there is not",
         "does not exist",
         {.type = MSG_NOTIFY, .n = 1, .id = (uint64_t)1 << 40},
         {{0}},
         0,
         NULL},
	{"an offer of a sample of its own",
         "does not own",
         {.type = MSG_OFFER, .id = 1, .index = MINE, .bytes = 1},
         {{0}},
         0,
         NULL},
	{"an answer to no offer", "not made", {.type = MSG_TAKE, .id = 5}, {{0}}, 0, NULL},
	{"a value that was not accepted",
         "not accepted",
         {.type = MSG_PUSH, .id = 1, .index = THEIRS, .bytes = 1},
         {{0}},
         0,
         NULL},
	{"a note of a ticket that an answer is due for",
         "left for later",
         {.type = MSG_NOTIFY, .n = 1},
         {{0}},
         0,
         notify_then_reply},
	{"a value called too large for space that holds it",
         "invalid reply",
         {.type = MSG_REPLY, .n = 1},
         {{0}},
         0,
         reply_large},
	{"a value longer than it was offered",
         "not the one it offered",
         {.type = MSG_PUSH, .bytes = 1 << 16, .sum = 7},
         {{0}},
         0,
         offer_then_push},
	{"a value with another checksum than was offered",
         "not the one it offered",
         {.type = MSG_PUSH, .bytes = 64, .sum = 8},
         {{0}},
         0,
         offer_then_push},
	{"silence after a request", silence, {0}, {{0}}, 0, never_answer},
	{"silence after LATER", silence, {0}, {{0}}, 0, never_notify},
	{"silence after an offer that was taken",
         silence,
         {.type = MSG_OFFER, .id = 1, .bytes = 64, .sum = 7},
         {{0}},
         0,
         never_push},
	{"a message after both agreed to close",
         "was to close",
         {.type = MSG_DAMAGED, .index = THEIRS},
         {{0}},
         0,
         bye_then},
	{"a second BYE after the answer", "was to close", {.type = MSG_BYE}, {{0}}, 0, bye_then},
	{"a BYE while a value is loaded for it", "something of it is due", {.type = MSG_BYE}, {{0}}, 0, bye_amid_load},
	{"a BYE instead of a value that was taken",
         "something of it is due",
         {.type = MSG_BYE},
         {{0}},
         0,
         bye_amid_offer},
	{"a BYE with a number", "invalid end", {.type = MSG_BYE, .id = 1}, {{0}}, 0, NULL},
	{"BYE_OK unasked", "not made", {.type = MSG_BYE_OK}, {{0}}, 0, NULL},
	{"STAY unasked", "not made", {.type = MSG_STAY}, {{0}}, 0, NULL},
	{"silence after both agreed to close", silence, {.type = MSG_BYE}, {{0}}, 0, bye_then_silence},
	{"damage of a sample there is not",
         "does not own",
         {.type = MSG_DAMAGED, .index = ~(uint64_t)0},
         {{0}},
         0,
         NULL},
};

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
		message_open_peer(ds->service, &ds->service->peers[0]);
		atomic_store(&all_samples->step, 1);
		l.h.index = sample_of(ds, l.h.index);
		l.items[0].index = sample_of(ds, l.items[0].index);
		if (l.play)
			l.play(ds, l.h);
		else
			links->send(links->ctx, 0, &l.h, sizeof l.h, &rq[0], NULL);
		if (l.follows)
			links->send(links->ctx, 0, l.items, sizeof l.items, &rq[1], NULL);
		while (!channel_pause(ds->channel, -1, 1, &v->error))
			;
		v->status = v->error.status;
	} else {
		/* Values of its own, which it has without asking anybody; or the liar's. */
		uint32_t type = lying->h.type;
		bool own =
			type == MSG_PUSH || type == MSG_OFFER || type == MSG_DAMAGED || type >= MSG_BYE || !lying->play;
		uint64_t index = sample_of(ds, own ? THEIRS : MINE);
		double begin = process_now();
		while (!atomic_load(&all_samples->step))
			usleep(500);
		while (!(v->status = gradcomp_dataset_get(ds, index, &view, &v->error)) && process_now() - begin < 20) {
			gradcomp_dataset_release(ds, &view);
			usleep(500);
		}
	}
	gradcomp_dataset_free(ds, NULL);
}

enum { DROP, MEET, SLOW_REQUESTS = SAMPLES };

/* Returns a value of all_samples->step: 1 when the peer answers itself, then three for each part. */
static unsigned slow_step(unsigned part, unsigned k)
{
	return 1 + 3 * part + k;
}

typedef struct asked {
	header h;
	request_item items[REQUEST_ITEMS_MAX];
} asked;

static void step_await(unsigned step)
{
	while (atomic_load(&all_samples->step) < step)
		usleep(500);
}

/* Values, absences, and values that come later but do not: of one sample each. */
static void slow_answer(gradcomp_dataset *ds, const asked *a, bool all)
{
	reply_item items[REQUEST_ITEMS_MAX] = {0};
	unsigned char values[SAMPLES][64] = {{0}};
	size_t sent = 0;
	for (uint32_t i = 0; i < a->h.n; i++) {
		uint64_t index = a->items[i].index;
		items[i].status = all || index % 3 == 0 ? REPLY_SENT : index % 3 == 1 ? REPLY_ABSENT : REPLY_LATER;
		if (items[i].status != REPLY_SENT)
			continue;
		for (uint64_t k = 0; k < all_samples->bytes; k++)
			values[sent][k] = sample_byte(index, k);
		items[i].bytes = all_samples->bytes;
		items[i].sum = XXH64(values[sent++], all_samples->bytes, index);
	}
	post(ds, &(header){.type = MSG_REPLY, .n = a->h.n, .id = a->h.id}, sizeof a->h);
	post(ds, items, a->h.n * sizeof items[0]);
	for (uint32_t i = 0, carried, at = 0; i < a->h.n; i += carried) {
		carried = 1;
		if (items[i].status != REPLY_SENT)
			continue;
		uint64_t run = reply_run(items, a->h.n, i, &carried);
		post(ds, values[at], run);
		at += carried;
	}
	for (uint32_t i = 0; i < a->h.n; i++)
		if (items[i].status == REPLY_LATER)
			post(ds,
			     &(header){
				     .type = MSG_NOTIFY, .n = 1, .id = a->items[i].ticket, .index = a->items[i].index},
			     sizeof a->h);
}

static void slow_peer(gradcomp_dataset *ds)
{
	static asked all[SLOW_REQUESTS];
	service_stop(ds);
	message_open_peer(ds->service, &ds->service->peers[0]);
	atomic_store(&all_samples->step, 1);
	for (unsigned part = DROP; part <= MEET; part++) {
		unsigned n = 0;
		step_await(slow_step(part, 1));
		for (unsigned items = 0; items < atomic_load(&all_samples->go); items += all[n++].h.n) {
			all[n].h = await_header(ds);
			await_bytes(ds, all[n].items, all[n].h.n * sizeof all[n].items[0]);
			message_receive_header(ds->service, &ds->service->peers[0]);
		}
		atomic_fetch_add(&all_samples->step, 1);
		step_await(slow_step(part, 3));
		for (unsigned i = 0; i < n; i++)
			slow_answer(ds, &all[i], part == MEET);
	}
}

/* Tickets of a state, or of any but FREE, and values that the receive buffer holds. */
static unsigned tickets_in(const gradcomp_dataset *ds, unsigned state)
{
	unsigned n = 0;
	for (uint32_t i = 0; i < ds->head->ntickets; i++) {
		unsigned is = atomic_load(&ds->tickets[i].word) & WORD_STATE;
		n += state ? is == state : is != TICKET_FREE;
	}
	return n;
}

static unsigned blocks_held(const gradcomp_dataset *ds)
{
	unsigned n = 0;
	for (uint32_t b = 0; b < BLOCKS; b++)
		n += atomic_load(&ds->fetch->refs[b]) > 0;
	return n;
}

static int slow_asker(gradcomp_dataset *ds, gradcomp_error *err)
{
	uint64_t length = gradcomp_dataset_length(ds), first = length, index;
	gradcomp_value_view v = {.struct_size = sizeof v};
	sample_owner at;
	double begin;
	int wrong = 0;
	/* In epoch 0 all are this node's. Of each of the other's there may be a request of its own. */
	while (first && atomic_load(&all_samples->go) < REQUESTS_MAX) {
		gradcomp_dataset_order(ds, 1, --first, &index, err);
		owner_of(ds, index, &at);
		atomic_fetch_add(&all_samples->go, (unsigned)at.node);
	}
	step_await(1);
	for (unsigned part = DROP; part <= MEET; part++) {
		atomic_store(&all_samples->step, slow_step(part, 1));
		wrong |= gradcomp_dataset_begin(ds, 1, first, err) != 0;
		step_await(slow_step(part, 2));
		/* Nothing, or the same once more. */
		wrong |= gradcomp_dataset_begin(ds, 1, part == DROP ? length : first, err) != 0;
		atomic_store(&all_samples->step, slow_step(part, 3));
		if (part == DROP) {
			for (begin = process_now();
			     (tickets_in(ds, 0) || blocks_held(ds)) && process_now() - begin < 10;)
				usleep(1000);
			if (tickets_in(ds, 0) || blocks_held(ds)) {
				printf("# %u tickets and %u blocks are left of what was dropped\n", tickets_in(ds, 0),
				       blocks_held(ds));
				wrong |= 2;
			}
		}
	}
	for (begin = process_now();
	     tickets_in(ds, TICKET_READY) < atomic_load(&all_samples->go) && process_now() - begin < 10;)
		usleep(1000);
	for (uint64_t p = first; !wrong && p < length; p++) {
		gradcomp_dataset_order(ds, 1, p, &index, err);
		wrong |= gradcomp_dataset_next(ds, &v, err) != 0 || !v.data || !sample_right(&v, index);
		gradcomp_dataset_release(ds, &v);
	}
	return wrong | !atomic_load(&all_samples->go);
}

static void slow_body(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)b;
	v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0;
	if (v->wrong)
		return;
	if (rank)
		slow_peer(ds);
	else
		v->wrong = slow_asker(ds, &v->error);
	v->wrong |= gradcomp_dataset_free(ds, &v->error) != 0;
}

static void slow(void)
{
	settings[3] = "transport.wait_timeout=60";
	samples_forget();
	all_samples->bytes = 60;
	process_board *b = run_processes(2, settings, slow_body, sizeof(dataset_result));
	ok(all_well(b), "what next() no longer expects is dropped when it comes, and what it expects again is there");
	end_processes(b);
}

static void lost_offerer(gradcomp_dataset *ds, bool pushes)
{
	const header offer = {.type = MSG_OFFER, .id = 1, .index = last_sample(ds), .bytes = 1 << 16, .sum = 7};
	service_stop(ds);
	message_open_peer(ds->service, &ds->service->peers[0]);
	post(ds, &offer, sizeof offer);
	if (await_header(ds).type != MSG_TAKE)
		return;
	if (pushes) {
		header push = offer;
		push.type = MSG_PUSH;
		post(ds, &push, sizeof push);
	}
	atomic_store(&all_samples->step, 1);
	step_await(2);
	raise(SIGKILL);
}

/* Looks at what is the service's, whose thread changes it. */
__attribute__((no_sanitize("thread"))) static bool is_pushed(const gradcomp_dataset *ds)
{
	return *(const volatile peer_state *)&ds->service->peers[0].state == IN_PUSH;
}

static void lost_body(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	uint64_t index;
	(void)b;
	v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0;
	if (v->wrong)
		return;
	if (rank)
		lost_offerer(ds, atomic_load(&all_samples->go));
	index = last_sample(ds);
	step_await(1);
	while (atomic_load(&all_samples->go) && !is_pushed(ds))
		usleep(500);
	alarm((unsigned)(20 * pace()));
	atomic_store(&all_samples->step, 2);
	v->wrong |= (gradcomp_dataset_get(ds, index, &view, &v->error) != 0 || !sample_right(&view, index)) << 1;
	v->wrong |= (view.source != GRADCOMP_VALUE_LOADED) << 2;
	gradcomp_dataset_release(ds, &view);
	/* And what has been filled since stays. */
	v->wrong |= (gradcomp_job_shrink(job, NULL, &v->error) != 0) << 3;
	v->wrong |= (gradcomp_dataset_get(ds, index, &view, &v->error) != 0 || view.source != GRADCOMP_VALUE_LOCAL ||
	             !sample_right(&view, index))
	            << 4;
	gradcomp_dataset_release(ds, &view);
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 5;
}

static void lost(bool pushes)
{
	settings[4] = "gradcomp.on_failure=shrink";
	samples_forget();
	atomic_store(&all_samples->go, pushes);
	process_board *b = run_processes(2, settings, lost_body, sizeof(dataset_result));
	const dataset_result *v = process_room(b, 0);
	ok(b->slot[0].left && !v->wrong,
	   "a rank is lost %s of a value that it has offered: who wants that loads it, before shrink: wrong %#x, %s",
	   pushes ? "after the header" : "before the header", (unsigned)v->wrong, v->error.text);
	end_processes(b);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	processes_on(two_nodes);
	for (size_t k = 0; k < sizeof lies / sizeof lies[0]; k++) {
		lying = &lies[k];
		gradcomp_status st = lying->answer == silence ? GRADCOMP_ERR_TIMEOUT : GRADCOMP_ERR_MISMATCH;
		settings[3] = lying->answer == silence ? "transport.wait_timeout=2" : NULL;
		samples_forget();
		process_board *b = run_processes(2, settings, body, sizeof(dataset_result));
		const dataset_result *v = process_room(b, 0), *liar = process_room(b, 1);
		ok(v->status == st && liar->status == st && !v->wrong, "%s ends the job on both sides", lying->name);
		like(v->error.text, "rank 1 on ", "naming who said it");
		like(v->error.text, lying->answer, "and what it was");
		end_processes(b);
	}
	slow();
	lost(false);
	lost(true);
	return done_testing();
}
