/* A rank that lies to another's service of a dataset, by whole conversations: what the input says is done in turn
 * by the liar (messages in any order, for other blocks, with other lengths, again, late), by the program that wants
 * values, and by the service. Whatever comes, a value on loan stays where and as long as it was, nothing is
 * received beside the space that was taken for it, and no count of references is wrong. */
#include "tests/fuzz/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "io/dataset/net/service.h"
#include "job/job.h"
#include "transport/link/link.h"
#include "transport/core/transport_internal.h"

enum { SAMPLES = 48, MEMORY = 1 << 20, PENDING = 1100, KEPT = 32, HELD = 64, STEPS = 400 };

static long taken, refused;

static gradcomp_job *job;
static gradcomp_dataset *ds;
static gradcomp_group group;
static void *fresh; /* the shared memory as it was made */

static const uint8_t *in;
static size_t left;

static uint8_t byte(void)
{
	return left ? (left--, *in++) : 0;
}

static uint64_t number(unsigned bytes)
{
	uint64_t v = 0;
	while (bytes--)
		v = v << 8 | byte();
	return v;
}

/* Mostly a length that values have; now and then any. */
static uint64_t length(void)
{
	uint8_t how = byte();
	return how < 160 ? number(1) * 16 : how < 240 ? number(2) : how < 248 ? number(3) : number(8);
}

/* Samples of the victim's node, and the liar's. */
static uint64_t mine[SAMPLES], theirs[SAMPLES];
static unsigned nmine, ntheirs;

static uint64_t my_sample(void)
{
	uint8_t b = byte();
	return b < 250 ? mine[b % nmine] : b;
}

static uint64_t their_sample(void)
{
	return theirs[byte() % ntheirs];
}

typedef struct pending {
	unsigned char *buf;
	size_t bytes, have;
	request *r;
} pending;

static pending wants[PENDING]; /* receives, in order */
static unsigned nwants;
static bool stalled; /* the liar takes nothing */
static bool closing; /* the victim has said BYE */
static request *unsent[4096];
static unsigned nunsent;

/* The victim said these last. */
static header asked[KEPT], offered[KEPT], takes[KEPT];
static request_item items[KEPT][REQUEST_ITEMS_MAX];
static unsigned nasked, noffered, ntakes;
static header pushing; /* the liar offers this */
static int table_of = -1;
static bool raw;

static void check_place(const unsigned char *buf, size_t bytes)
{
	const unsigned char *head = (unsigned char *)ds->head;
	uint64_t at = (uint64_t)(buf - head);
	if (buf < head || buf >= head + ds->mapped || !bytes)
		return;
	if (at >= ds->head->arena && at + bytes <= ds->head->arena + ds->head->arena_limit)
		return;
	for (uint32_t i = 0; i < ds->service->nsorted; i++) {
		const block *b = &ds->service->blocks[ds->service->sorted[i]];
		if (at >= b->offset && at + bytes <= b->offset + b->bytes)
			return;
	}
	abort();
}

static gradcomp_status wire_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                 gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	(void)ctx;
	(void)peer;
	(void)err;
	/* A connection was closed, and there is another. */
	for (unsigned i = 0; i < nwants; i++)
		if (wants[i].r == r) {
			memmove(wants + i, wants + i + 1, (--nwants - i) * sizeof *wants);
			break;
		}
	if (nwants == PENDING)
		abort();
	check_place(buf, bytes);
	r->done = bytes == 0;
	if (bytes)
		wants[nwants++] = (pending){buf, bytes, 0, r};
	return GRADCOMP_OK;
}

static gradcomp_status wire_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                 gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	header h;
	(void)ctx;
	(void)peer;
	(void)err;
	r->done = !stalled || nunsent == sizeof unsent / sizeof *unsent;
	if (!r->done)
		unsent[nunsent++] = r;
	/* Reads all of it: where it does not belong the sanitizer says so. */
	if (bytes && XXH64(buf, bytes, 0) == 1)
		taken++;
	if (table_of >= 0) {
		memcpy(items[table_of], buf, bytes);
		table_of = -1;
		return GRADCOMP_OK;
	}
	if (raw || bytes != sizeof h) {
		raw = false;
		return GRADCOMP_OK;
	}
	memcpy(&h, buf, sizeof h);
	switch (h.type) {
	case MSG_REQUEST:
		table_of = (int)(nasked % KEPT);
		asked[nasked++ % KEPT] = h;
		break;
	case MSG_OFFER:
		offered[noffered++ % KEPT] = h;
		break;
	case MSG_TAKE:
		takes[ntakes++ % KEPT] = h;
		break;
	case MSG_PUSH:
		raw = true;
		break;
	case MSG_BYE:
		closing = true;
		break;
	}
	return GRADCOMP_OK;
}

static const gradcomp_links links = {
	.struct_size = sizeof links, .nranks = 2, .nnodes = 2, .send = wire_send, .recv = wire_recv};

/* Feeds bytes that wait while nobody listens; there it is lost, as the liar goes on anyway. */
static void feed(const void *data, uint64_t bytes)
{
	const unsigned char *at = data;
	for (uint64_t fed = 0; fed < bytes && nwants && !ds->service->status;) {
		pending *p = &wants[0];
		size_t n = p->bytes - p->have;

		n = n < bytes - fed ? n : (size_t)(bytes - fed);
		if (at)
			memcpy(p->buf + p->have, at + fed, n);
		else
			memset(p->buf + p->have, 0x5a, n);
		p->have += n;
		fed += n;
		if (p->have < p->bytes)
			continue;
		p->r->done = 1;
		memmove(wants, wants + 1, --nwants * sizeof *wants);
		if (!nwants)
			service_turn(ds->service);
	}
}

/* One field is another, now and then. */
static void tell(header h)
{
	uint8_t how = byte();
	if (how >= 240) {
		uint64_t v = length();

		switch (how % 6) {
		case 0:
			h.type = (uint32_t)v % 13;
			break;
		case 1:
			h.n = (uint32_t)v % 300;
			break;
		case 2:
			h.id ^= v;
			break;
		case 3:
			h.index = v % (SAMPLES + 2);
			break;
		case 4:
			h.bytes = v;
			break;
		default:
			h.sum ^= v;
		}
	}
	feed(&h, sizeof h);
}

static void reply(void)
{
	unsigned k = (nasked - 1 - byte() % 4u) % KEPT;
	reply_item table[REQUEST_ITEMS_MAX];
	header h = {.type = MSG_REPLY, .n = asked[k].n, .id = asked[k].id};
	uint64_t bytes = 0, run;
	uint32_t carried;
	if (!nasked || h.n > REQUEST_ITEMS_MAX)
		return;
	for (uint32_t i = 0; i < h.n; i++) {
		uint8_t status = byte();

		table[i] = (reply_item){.status = status < 160 ? REPLY_SENT : status % 6u};
		table[i].bytes = table[i].status == REPLY_LARGE ? asked[k].bytes + number(1) : length();
	}
	tell(h);
	feed(table, h.n * sizeof *table);
	for (uint32_t i = 0; i < h.n; i += carried) {
		carried = 1;
		if (table[i].status != REPLY_SENT)
			continue;
		run = reply_run(table, h.n, i, &carried);
		bytes += run;
		if (bytes > 4 * MEMORY)
			return;
		feed(NULL, run);
	}
}

static void request_some(void)
{
	request_item wanted[REQUEST_ITEMS_MAX];
	uint32_t n = byte() % 40u;
	for (uint32_t i = 0; i < n; i++)
		wanted[i] = (request_item){my_sample(), byte(), byte() > 100};
	tell((header){.type = MSG_REQUEST, .n = n, .id = byte(), .bytes = length()});
	feed(wanted, n * sizeof *wanted);
}

static uint64_t sum_of_push(void)
{
	static unsigned char bytes[MEMORY];
	if (bytes[0] != 0x5a)
		memset(bytes, 0x5a, sizeof bytes);
	return XXH64(bytes, pushing.bytes < MEMORY ? pushing.bytes : 0, pushing.index);
}

static void liar(uint8_t op)
{
	unsigned char some[64];
	peer *p;
	unsigned k;
	switch (op % 11) {
	case 0:
	case 1:
		reply();
		break;
	case 2: /* for a ticket that was asked for, or any */
		k = byte();
		if (nasked && k < 220)
			tell((header){.type = MSG_NOTIFY,
			              .n = byte() & 1,
			              .id = items[(nasked - 1 - k % 4) % KEPT][k % 8].ticket,
			              .index = items[(nasked - 1 - k % 4) % KEPT][k % 8].index});
		else
			tell((header){.type = MSG_NOTIFY, .n = byte() & 1, .id = byte(), .index = their_sample()});
		break;
	case 3:
		pushing = (header){.type = MSG_OFFER, .id = byte(), .index = my_sample(), .bytes = length()};
		pushing.sum = sum_of_push();
		tell(pushing);
		break;
	case 4: /* the value offered last, or taken last, or of another length */
		pushing.type = MSG_PUSH;
		k = byte();
		if (ntakes && k >= 128)
			pushing.index = takes[(ntakes - 1) % KEPT].index;
		if (k % 8 == 7) {
			pushing.bytes = length();
			pushing.sum = sum_of_push();
		}
		tell(pushing);
		feed(NULL, pushing.bytes < MEMORY ? pushing.bytes : 0);
		break;
	case 5:
		k = (noffered - 1 - byte() % 3u) % KEPT;
		if (noffered)
			tell((header){.type = byte() & 1 ? MSG_TAKE : MSG_LEAVE,
			              .id = offered[k].id,
			              .index = offered[k].index});
		break;
	case 6:
		request_some();
		break;
	case 7:
		tell((header){.type = MSG_DAMAGED, .index = my_sample()});
		break;
	case 8: /* an answer to the victim's last message, or now and then anything */
		k = byte();
		tell((header){.type = k < 60 || !closing ? MSG_BYE : k < 200 ? MSG_BYE_OK : MSG_STAY});
		closing = false;
		break;
	case 9: /* it has closed after that, and needs a connection again; the victim wants to have none, or one */
		p = &ds->service->peers[0];
		ds->service->nlinks_limit = byte() & 1;
		if (p->link == LINK_CLOSED || p->link == LINK_LEFT)
			links_called(ds->service, p);
		break;
	default:
		k = byte() % sizeof some;
		for (unsigned i = 0; i < k; i++)
			some[i] = byte();
		feed(some, k);
	}
}

typedef struct loan {
	ticket *t;
	uint64_t offset, bytes, sum;
} loan;

static loan loans[HELD];
static unsigned nloans;

static void check_loans(void)
{
	for (unsigned i = 0; i < nloans; i++) {
		const loan *l = &loans[i];
		const unsigned char *at = (unsigned char *)ds->head + l->offset;
		unsigned state = atomic_load(&l->t->word) & WORD_STATE;

		if ((state != TICKET_HELD && state != TICKET_OFFERED) || l->t->offset != l->offset ||
		    l->t->bytes != l->bytes || XXH64(at, l->bytes, 0) != l->sum)
			abort();
	}
	for (unsigned b = 0; b < BLOCKS; b++)
		if (atomic_load(&ds->fetch->refs[b]) < 0)
			abort();
}

/* Checks what other nodes and this one's processes are given. */
static void check_slots(void)
{
	for (unsigned i = 0; i < nmine; i++) {
		sample_owner at;
		slot_value v;

		owner_of(ds, mine[i], &at);
		if (slot_look(&ds->slots[at.slot], &v) == SLOT_READY &&
		    (v.offset < ds->head->arena || v.bytes > MEMORY ||
		     v.offset + v.bytes > ds->head->arena + ds->head->arena_limit ||
		     XXH64((unsigned char *)ds->head + v.offset, v.bytes, mine[i]) != v.sum))
			abort();
	}
}

static void lend(ticket *t, uint32_t word)
{
	const block *b = &ds->service->blocks[t->block];
	if (t->offset < b->offset || t->offset + t->bytes > b->offset + b->bytes ||
	    atomic_load(&ds->fetch->refs[t->block]) < 1)
		abort();
	atomic_store(&t->word, word);
	loans[nloans++] = (loan){t, t->offset, t->bytes, XXH64((unsigned char *)ds->head + t->offset, t->bytes, 0)};
}

static void program(uint8_t op)
{
	uint32_t self = atomic_load(&ds->self), word;
	ticket *t = NULL;
	for (uint32_t i = 0, from = byte(); i < ds->head->ntickets && !t; i++) {
		ticket *one = &ds->tickets[(i + from) % ds->head->ntickets];
		unsigned state = atomic_load(&one->word) & WORD_STATE;

		if (state == TICKET_READY || state == TICKET_ABSENT || state == TICKET_LOADING)
			t = one;
	}
	switch (op % 4) {
	case 0:
		fetch_expect(ds, their_sample(), byte() & (TICKET_ORDERED | TICKET_URGENT));
		return;
	case 1:
		if (nloans) {
			unsigned k = byte() % nloans;

			fetch_release(ds, loans[k].t);
			loans[k] = loans[--nloans];
		}
		return;
	case 2:
		if (byte() > 230)
			fetch_drop(ds);
		return;
	}
	if (!t || nloans == HELD)
		return;
	word = atomic_load(&t->word);
	switch (word & WORD_STATE) {
	case TICKET_READY:
		lend(t, TICKET_HELD | self);
		break;
	case TICKET_ABSENT: /* is loaded here, and space for it wanted */
		t->bytes = length() % 9000;
		t->offset = 0;
		atomic_store(&t->word, TICKET_ALLOC | self);
		fetch_notify(ds, t);
		break;
	case TICKET_LOADING:
		if (!t->offset) {
			atomic_store(&t->word, TICKET_FREE);
			break;
		}
		memset((unsigned char *)ds->head + t->offset, byte(), t->bytes);
		lend(t, TICKET_OFFERED | self);
		fetch_notify(ds, t);
	}
}

static gradcomp_status load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	uint64_t bytes = index * 397 % 20000;
	void *p = out->alloc(out, bytes);
	(void)ctx;
	(void)err;
	if (p)
		memset(p, (int)index, bytes);
	return p ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
}

static void must_be(int good, const char *what, const gradcomp_error *err)
{
	if (good)
		return;
	fprintf(stderr, "cannot begin: %s: %s\n", what, err->text);
	exit(2);
}

/* Two nodes of a rank each, of which this is the first. */
static void begin(void)
{
	static int ranks[2];
	gradcomp_job_options jo = {.struct_size = sizeof jo};
	gradcomp_error err = {0};
	shm_share_name name;
	const char *build = getenv("GRADCOMP_BUILD");
	char plugins[4200];
	int listener = -1;
	snprintf(plugins, sizeof plugins, "%s/lib/gradcomp", build ? build : ".");
	setenv("GRADCOMP_PLUGIN_PATH", plugins, 1);
	must_be(!gradcomp_job_create(&jo, &job, &err), "a job", &err);
	group = *gradcomp_job_world(job);
	group.nranks = 2;
	group.ranks = ranks;
	ds = calloc(1, sizeof *ds);
	must_be(ds && (ds->node_of = calloc(2, sizeof *ds->node_of)) &&
	                (ds->local_of = calloc(2, sizeof *ds->local_of)),
	        "memory", &err);
	ds->node_of[1] = 1;
	ds->group = &group;
	ds->nranks = ds->nnodes = 2;
	ds->nlocal = 1;
	ds->fd = ds->spill_fd = ds->wake_fd = -1;
	ds->o = (gradcomp_dataset_options){.struct_size = sizeof ds->o,
	                                   .count = SAMPLES,
	                                   .seed = 3,
	                                   .memory = MEMORY,
	                                   .load = load,
	                                   .prefetch = 64};
	permutation_init(&ds->owners.first, ds->o.seed, 0, SAMPLES, 1);
	must_be(!owners_init(&ds->owners, ds->node_of, ds->local_of, 2, 2, false, &err), "owners", &err);
	ds->nslots = owners_slots(&ds->owners, 0);
	atomic_store(&ds->users, 1);
	atomic_store(&ds->forks, process_forks());
	must_be(!shm_share_create(ds, &name, &listener, &err) && !process_register(ds, &err), "a dataset", &err);
	for (uint64_t i = 0; i < SAMPLES; i++) {
		sample_owner at;

		owner_of(ds, i, &at);
		if (at.node)
			theirs[ntheirs++] = i;
		else
			mine[nmine++] = i;
	}
	fresh = malloc(ds->mapped);
	must_be(fresh != NULL, "memory", &err);
	memcpy(fresh, ds->head, ds->mapped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	gradcomp_error err = {0};
	if (!ds)
		begin();
	in = data;
	left = size;
	nwants = nasked = noffered = ntakes = nloans = nunsent = 0;
	stalled = raw = closing = false;
	table_of = -1;
	memset(items, 0, sizeof items);
	memcpy(ds->head, fresh, ds->mapped);
	atomic_store(&job->transport->failure.set, 0);
	must_be(!service_new(ds, &links, &err), "a service", &err);
	for (int i = 0; i < ds->service->npeers; i++)
		message_open_peer(ds->service, &ds->service->peers[i]);
	ds->service->nlinks_limit = byte() % 4 != 0;
	for (uint8_t i = byte() % 8; i; i--) {
		sample_owner at;

		owner_of(ds, mine[i], &at);
		slot_obtain(ds, mine[i], at.slot, NULL, NULL);
	}
	for (int i = 0; i < STEPS && left && !ds->service->status; i++) {
		uint8_t op = byte();

		if (op < 90)
			program(op);
		else if (op < 220)
			liar(op);
		else if (op > 250)
			stalled = !stalled;
		service_turn(ds->service);
		for (; !stalled && nunsent; nunsent--)
			unsent[nunsent - 1]->done = 1;
		check_loans();
	}
	check_slots();
	refused += ds->service->status != 0;
	taken += !ds->service->status;
	/* Whoever waits for a value that was offered and never came goes on. */
	error_set(&err, GRADCOMP_ERR_STATE, "the conversation has ended");
	process_failed(ds, &err);
	service_free(ds);
	close(ds->wake_fd);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("dataset", 20000, &taken, &refused);
}
#endif
