#include "kinds/by_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "config/name_rules.h"
#include "job/consensus.h"
#include "job/saved_state.h"
#include "reducer/arg_errors.h"
#include "reducer/reducer_consensus.h"
#include "step/layout.h"

typedef struct by_name by_name;

/* The reducer of those tensors that have one SPEC. */
typedef struct spec_part {
	by_name *of;
	reducer *r;
	const name_rule *rule; /* the first one with its SPEC and collective */
	uint32_t *tensor;      /* the caller's numbers, by the reducer's own */
	uint32_t n;
	report_reducer row; /* what it leaves the report */
} spec_part;

struct by_name {
	gradcomp_reducer base;
	gradcomp_group *group;
	gradcomp_layout layout; /* has all tensors */
	gradcomp_reducer_options options;
	name_rules rules;
	spec_part part[NAME_RULES + 1];
	uint32_t nparts, n;
	uint8_t *of;  /* the part of each of the caller's tensors */
	uint32_t *as; /* and its number there */
	pthread_mutex_t lock;
	uint8_t *given; /* under the lock: 1 of tensors that the step has */
	uint32_t ngiven;
	uint64_t steps;
};

static by_name *by_name_of(gradcomp_reducer *base)
{
	return (by_name *)base;
}

/* The caller's tensor i. */
static const gradcomp_tensor *tensor_of(const by_name *b, uint32_t i)
{
	return &b->layout.tensors[b->n - 1 - i];
}

/* The reducer that has tensor i. */
static gradcomp_reducer *behind(const by_name *b, uint32_t i)
{
	return &b->part[b->of[i]].r->base;
}

/* What a failure leaves given is done then: reducers that were given less than a bucket look for themselves only when
 * they are given more. */
static void look(const by_name *b)
{
	for (uint32_t k = 0; k < b->nparts; k++)
		reducer_look(b->part[k].r);
}

/* Counts tensor i in, or out again. A step that has all is over for the counting: its reducers know the rest. */
static void count(by_name *b, uint32_t i, bool in)
{
	if (in) {
		b->given[i] = 1;
		if (++b->ngiven == b->n) {
			b->steps++;
			b->ngiven = 0;
			memset(b->given, 0, b->n);
		}
		return;
	}
	if (!b->ngiven) {
		b->steps--;
		b->ngiven = b->n;
		memset(b->given, 1, b->n);
	}
	b->given[i] = 0;
	b->ngiven--;
}

static gradcomp_status by_name_ready(gradcomp_reducer *base, uint32_t i, void *gradient, gradcomp_error *err)
{
	by_name *b = by_name_of(base);
	gradcomp_error own;
	if (i >= b->n)
		return arg_error_index(i, b->n, err);
	if (!gradient && tensor_of(b, i)->numel)
		return arg_error_null(i, tensor_of(b, i)->name, err);
	pthread_mutex_lock(&b->lock);
	bool twice = b->given[i];
	const uint64_t step = b->steps;
	if (!twice)
		count(b, i, true);
	pthread_mutex_unlock(&b->lock);
	if (twice)
		arg_fail_twice(b->group->job, i, tensor_of(b, i)->name, step);
	gradcomp_status st = twice ? transport_failure(b->group->job->transport, &own)
	                           : behind(b, i)->ops->ready(behind(b, i), b->as[i], gradient, &own);
	if (!st)
		return st;
	if (!twice) {
		pthread_mutex_lock(&b->lock);
		count(b, i, false);
		pthread_mutex_unlock(&b->lock);
	}
	look(b);
	return error_set(err, st, "%s", own.text);
}

/* Tensors of a part are done: the program hears of runs of its own numbers. */
static void part_done(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err)
{
	const spec_part *q = ctx;
	const gradcomp_reducer_options *o = &q->of->options;
	for (const uint32_t *at = q->tensor + first, *end = at + n; at < end;) {
		uint32_t run = 1;
		while (at + run < end && at[run] == *at + run)
			run++;
		if (o->done_run)
			o->done_run(o->ctx, *at, run, status, err);
		for (uint32_t i = 0; !o->done_run && i < run; i++)
			o->done(o->ctx, at[i], status, err);
		at += run;
	}
}

/* Refuses what is asked for in the middle of a step. */
static gradcomp_status missing(by_name *b, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&b->lock);
	if (b->ngiven) {
		uint32_t i = b->n - 1;
		while (b->given[i])
			i--;
		st = arg_error_missing(b->ngiven, b->n, b->steps, i, tensor_of(b, i)->name, err);
	}
	pthread_mutex_unlock(&b->lock);
	return st;
}

static gradcomp_status by_name_wait(gradcomp_reducer *base, gradcomp_error *err)
{
	by_name *b = by_name_of(base);
	gradcomp_error own;
	gradcomp_status st = transport_failure(b->group->job->transport, &own) ? GRADCOMP_OK : missing(b, err);
	if (st)
		return st;
	/* Of all, so that none touches the program's gradients any more. */
	look(b);
	for (uint32_t k = 0; k < b->nparts; k++) {
		gradcomp_status one = b->part[k].r->base.ops->wait(&b->part[k].r->base, &own);
		if (one && !st)
			st = error_set(err, one, "%s", own.text);
	}
	return st;
}

static gradcomp_status by_name_wait_for(gradcomp_reducer *base, uint32_t i, gradcomp_error *err)
{
	by_name *b = by_name_of(base);
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error own;
	if (i >= b->n)
		return arg_error_index(i, b->n, err);
	pthread_mutex_lock(&b->lock);
	if (b->ngiven && !b->given[i] && !transport_failure(b->group->job->transport, &own))
		st = arg_error_not_given(i, tensor_of(b, i)->name, b->steps, err);
	pthread_mutex_unlock(&b->lock);
	return st ? st : behind(b, i)->ops->wait_for(behind(b, i), b->as[i], err);
}

static gradcomp_status by_name_follow(gradcomp_reducer *base, uint32_t i, void *queue, gradcomp_error *err)
{
	const by_name *b = by_name_of(base);
	return i < b->n ? behind(b, i)->ops->follow(behind(b, i), b->as[i], queue, err) : arg_error_index(i, b->n, err);
}

static gradcomp_status by_name_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights,
                                     double rate, gradcomp_error *err)
{
	(void)corrections, (void)weights, (void)rate;
	return by_name_wait(base, err);
}

/* A saved state: this head, then the length and the bytes of each part's, padded to a multiple of 8. */
typedef struct by_name_head {
	saved_head saved;
	uint64_t bytes, tensors;
	char rules[NAME_RULES_MAX + 20];
	uint32_t nparts;
} by_name_head;

static uint64_t padded(uint64_t bytes)
{
	return (bytes + 7) & ~(uint64_t)7;
}

/* Lists the calls for a state of one kind. */
typedef struct state_kind {
	saved_kind saved;
	gradcomp_status (*save)(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
	                        gradcomp_error *err);
} state_kind;

static const state_kind own_state = {SAVED_BY_NAME, reducer_save};
static const state_kind shared_state = {SAVED_SHARED_BY_NAME, reducer_save_shared};

static void other_state(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	(void)claim, (void)claim0;
	snprintf(out, capacity, "has a state of another length, step or content than rank %d", first);
}

/* A part's state in memory of its own. */
static gradcomp_status take_state(const spec_part *q, const state_kind *kind, void **out, uint64_t *bytes,
                                  gradcomp_error *err)
{
	*out = NULL;
	gradcomp_status st = kind->save(&q->r->base, NULL, 0, bytes, err);
	if (st)
		return st;
	*out = malloc(*bytes + 1);
	if (!*out)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a state of %llu bytes",
		                 (unsigned long long)*bytes);
	return kind->save(&q->r->base, *out, *bytes, bytes, err);
}

static void fill_head(const by_name *b, by_name_head *h)
{
	memset(h, 0, sizeof *h);
	h->tensors = layout_hash(&b->layout);
	h->nparts = b->nparts;
	snprintf(h->rules, sizeof h->rules, "%s", b->rules.text);
}

static gradcomp_status save_as(by_name *b, const state_kind *kind, char *buf, uint64_t capacity, uint64_t *bytes,
                               gradcomp_error *err)
{
	uint64_t each[NAME_RULES + 1] = {0}, total = sizeof(by_name_head);
	gradcomp_status st = missing(b, err);
	for (uint32_t k = 0; !st && k < b->nparts; k++) {
		st = kind->save(&b->part[k].r->base, NULL, 0, &each[k], err);
		total += sizeof *each + padded(each[k]);
	}
	if (!st)
		*bytes = total;
	if (!st && buf && capacity < total)
		st = error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		               (unsigned long long)capacity, (unsigned long long)total);
	/* All ranks or none begin what they save together. */
	const uint64_t claim[2] = {total, b->steps};
	if (buf && kind == &shared_state)
		st = consensus(b->group,
		               &(consensus_topic){"save a shared state", claim, sizeof claim, other_state, true}, st,
		               err);
	if (st || !buf)
		return st;
	memset(buf, 0, total);
	char *at = buf + sizeof(by_name_head);
	for (uint32_t k = 0; !st && k < b->nparts; k++) {
		memcpy(at, &each[k], sizeof *each);
		st = kind->save(&b->part[k].r->base, at + sizeof *each, each[k], &each[k], err);
		at += sizeof *each + padded(each[k]);
	}
	by_name_head h;
	fill_head(b, &h);
	h.bytes = total;
	memcpy(buf, &h, sizeof h);
	saved_seal(kind->saved, buf, total);
	return st;
}

static gradcomp_status by_name_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                    gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st = save_as(by_name_of(base), &own_state, buf, capacity, bytes, &own);
	return st ? error_set(err, st, "%s", own.text) : GRADCOMP_OK;
}

static gradcomp_status by_name_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                           gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st = save_as(by_name_of(base), &shared_state, buf, capacity, bytes, &own);
	return st ? error_set(err, st, "%s", own.text) : GRADCOMP_OK;
}

/* A part's state within one that is read. */
typedef struct piece {
	const char *state;
	uint64_t bytes;
} piece;

/* Checks that the whole state is one of such a reducer, and finds its pieces. */
static gradcomp_status read_state(const by_name *b, const char *buf, uint64_t bytes, piece pieces[NAME_RULES + 1],
                                  gradcomp_error *err)
{
	const saved_kind kind = saved_is_shared(buf, bytes) ? SAVED_SHARED_BY_NAME : SAVED_BY_NAME;
	by_name_head h, own;
	gradcomp_status st = saved_read(kind, buf, bytes, &h, sizeof h, err);
	if (!st && h.bytes != bytes)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "load: the state was saved with %llu bytes, %llu were given",
		                 (unsigned long long)h.bytes, (unsigned long long)bytes);
	if (!st)
		st = saved_check(kind, buf, bytes, err);
	if (st)
		return st;
	fill_head(b, &own);
	h.rules[sizeof h.rules - 1] = '\0';
	if (strcmp(h.rules, own.rules) != 0)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state is of '%s', and this reducer has '%s'",
		                 h.rules, own.rules);
	if (h.tensors != own.tensors || h.nparts != own.nparts)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "load: the state is of other tensors than this reducer has");
	const char *at = buf + sizeof h, *end = buf + bytes;
	for (uint32_t k = 0; k < b->nparts; k++) {
		uint64_t n = 0, left = (uint64_t)(end - at);
		if (left >= sizeof n)
			memcpy(&n, at, sizeof n);
		if (left < sizeof n || n > left - sizeof n || padded(n) > left - sizeof n)
			return error_set(err, GRADCOMP_ERR_INVALID, "load: the states behind the head are cut off");
		at += sizeof n;
		pieces[k].state = at;
		pieces[k].bytes = n;
		at += padded(n);
	}
	return GRADCOMP_OK;
}

static gradcomp_status by_name_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	by_name *b = by_name_of(base);
	piece pieces[NAME_RULES + 1] = {0};
	void *before[NAME_RULES + 1] = {0};
	uint64_t size[NAME_RULES + 1] = {0}, what = 0;
	gradcomp_error own = {0}, ignored;
	gradcomp_status st = missing(b, &own);
	if (!st)
		st = read_state(b, buf, bytes, pieces, &own);
	for (uint32_t k = 0; !st && k < b->nparts; k++)
		st = take_state(&b->part[k], &own_state, &before[k], &size[k], &own);
	if (!st && saved_is_shared(buf, bytes))
		what = ((const saved_head *)buf)->checksum;
	st = consensus(b->group, &(consensus_topic){"load its state", &what, sizeof what, other_state, false}, st,
	               &own);
	uint32_t k = 0;
	for (; !st && k < b->nparts; k++)
		st = reducer_load(&b->part[k].r->base, pieces[k].state, pieces[k].bytes, &own);
	/* The last one has refused, on all ranks, and has changed nothing. */
	while (st && k > 1) {
		k--;
		reducer_load(&b->part[k - 1].r->base, before[k - 1], size[k - 1], &ignored);
	}
	for (k = 0; k < b->nparts; k++)
		free(before[k]);
	return st ? error_set(err, st, "%s", own.text) : GRADCOMP_OK;
}

/* Counters of reducers that work side by side: what is sent and computed adds up, what a step waits for does not; of
 * error memory that which holds back most counts. */
static void add_stats(gradcomp_reducer_stats *to, const gradcomp_reducer_stats *s)
{
	to->steps = s->steps < to->steps ? s->steps : to->steps;
	to->nonfinite_steps = s->nonfinite_steps > to->nonfinite_steps ? s->nonfinite_steps : to->nonfinite_steps;
	to->exposed_s = s->exposed_s > to->exposed_s ? s->exposed_s : to->exposed_s;
	to->buckets += s->buckets;
	to->dense_bytes += s->dense_bytes;
	to->wire_bytes += s->wire_bytes;
	to->encode_s += s->encode_s;
	to->exchange_s += s->exchange_s;
	to->decode_s += s->decode_s;
	if (s->error_steps && (!to->error_steps || s->error_last > to->error_last)) {
		to->error_steps = s->error_steps;
		to->error_last = s->error_last;
		to->error_mean = s->error_mean;
	}
}

static void by_name_get_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats)
{
	by_name *b = by_name_of(base);
	const uint32_t size = stats->struct_size;
	gradcomp_reducer_stats full = {.struct_size = sizeof full};
	b->part[0].r->base.ops->get_stats(&b->part[0].r->base, &full);
	for (uint32_t k = 1; k < b->nparts; k++) {
		gradcomp_reducer_stats s = {.struct_size = sizeof s};
		b->part[k].r->base.ops->get_stats(&b->part[k].r->base, &s);
		add_stats(&full, &s);
	}
	full.struct_size = size;
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}

/* Joins the rows of parts, which it takes: the first one's, with the tensors of all, each with its SPEC. */
static void join_rows(const by_name *b, report_reducer *rows, report_reducer *out)
{
	report_tensor *all = calloc(b->n, sizeof *all);
	bool whole = all != NULL;
	for (uint32_t k = 0; k < b->nparts; k++)
		whole &= rows[k].ntensors == b->part[k].n;
	for (uint32_t i = 0; whole && i < b->n; i++) {
		report_tensor *t = (report_tensor *)rows[b->of[i]].tensors + b->as[i];
		char *choice = NULL;
		all[i] = *t;
		t->name = NULL;
		if (asprintf(&choice, "%s%s%s", b->part[b->of[i]].rule->spec, *t->choice ? ": " : "", t->choice) < 0)
			choice = NULL;
		all[i].choice = choice;
	}
	*out = rows[0];
	out->tensors = whole ? all : NULL;
	out->ntensors = whole ? b->n : 0;
	free((char *)out->asked);
	free((char *)out->compressor);
	out->asked = strdup(b->options.compressor);
	out->compressor = strdup(b->rules.text);
	rows[0] = (report_reducer){.tensors = rows[0].tensors, .ntensors = rows[0].ntensors};
	for (uint32_t k = 0; k < b->nparts; k++)
		job_drop_reducer(&rows[k]);
	if (!whole)
		free(all);
}

static void by_name_row(gradcomp_reducer *base, report_reducer *row)
{
	const by_name *b = by_name_of(base);
	report_reducer rows[NAME_RULES + 1] = {0};
	for (uint32_t k = 0; k < b->nparts; k++)
		b->part[k].r->base.ops->row(&b->part[k].r->base, &rows[k]);
	join_rows(b, rows, row);
}

static void part_kept(void *ctx, report_reducer *row)
{
	((spec_part *)ctx)->row = *row;
}

/* Leaves the report one row, when all parts have left theirs. */
static void keep_row(const by_name *b)
{
	report_reducer rows[NAME_RULES + 1], row;
	bool all = b->nparts > 0;
	for (uint32_t k = 0; k < b->nparts; k++) {
		rows[k] = b->part[k].row;
		all &= rows[k].asked != NULL;
	}
	for (uint32_t k = 0; !all && k < b->nparts; k++)
		job_drop_reducer(&rows[k]);
	if (!all)
		return;
	gradcomp_reducer_stats stats = rows[0].stats;
	for (uint32_t k = 1; k < b->nparts; k++)
		add_stats(&stats, &rows[k].stats);
	join_rows(b, rows, &row);
	row.stats = stats;
	if (b->base.report)
		b->base.report(b->base.report_ctx, &row);
	else
		job_keep_reducer(b->group->job, &row);
}

static void by_name_free(gradcomp_reducer *base)
{
	by_name *b = by_name_of(base);
	bool whole = b->base.ops != NULL;
	for (uint32_t k = 0; k < b->nparts; k++)
		if (b->part[k].r)
			reducer_dispose(&b->part[k].r->base);
	if (whole)
		keep_row(b);
	for (uint32_t k = 0; k < b->nparts; k++) {
		if (!whole)
			job_drop_reducer(&b->part[k].row);
		free(b->part[k].tensor);
	}
	layout_free(&b->layout);
	name_rules_clear(&b->rules);
	free((char *)b->options.compressor);
	pthread_mutex_destroy(&b->lock);
	free(b->given);
	free(b->of);
	free(b->as);
	free(b);
}

static const reducer_ops ops = {by_name_ready,     by_name_wait, by_name_wait_for,    by_name_follow,
                                by_name_drain,     by_name_save, by_name_save_shared, by_name_load,
                                by_name_get_stats, by_name_free, by_name_row};

bool by_name_requested(const config *c, const char *compressor)
{
	return name_rules_is(compressor ? compressor : config_str(c, SET_GRADCOMP_COMPRESSOR));
}

gradcomp_status by_name_check(spec_table *specs, const char *compressor, const char *collective, gradcomp_error *err)
{
	const char *text = compressor ? compressor : config_str(specs->config, SET_GRADCOMP_COMPRESSOR);
	const plugin *plugins[2];
	const spec *values[2];
	gradcomp_error inner;
	name_rules rules;
	gradcomp_status st = name_rules_parse(text, &rules, err);
	for (uint32_t i = 0; !st && i < rules.n; i++) {
		const name_rule *rule = &rules.rule[i];
		st = spec_table_job(specs, rule->spec, rule->collective ? rule->collective : collective, plugins,
		                    values, &inner);
		if (st)
			error_set(err, st, "SPECs by name, rule %u '%.60s': %s", i + 1, rule->glob, inner.text);
	}
	name_rules_clear(&rules);
	return st;
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

/* The part of a rule, which is new where no rule before it with tensors has its SPEC; NULL: no memory. */
static spec_part *part_of(by_name *b, const name_rule *rule)
{
	uint32_t k = 0;
	while (k < b->nparts && (strcmp(b->part[k].rule->spec, rule->spec) != 0 ||
	                         !same_text(b->part[k].rule->collective, rule->collective)))
		k++;
	spec_part *q = &b->part[k];
	if (k < b->nparts)
		return q;
	*q = (spec_part){.of = b, .rule = rule, .tensor = calloc(b->n, sizeof *q->tensor)};
	b->nparts += q->tensor != NULL;
	return q->tensor ? q : NULL;
}

/* Says which rule each tensor has, and on one rank which rules have none. */
static gradcomp_status share_out(by_name *b, gradcomp_error *err)
{
	bool used[NAME_RULES + 1] = {0};
	for (uint32_t i = 0; i < b->n; i++) {
		const uint32_t rule = name_rules_find(&b->rules, tensor_of(b, i)->name);
		spec_part *q = part_of(b, &b->rules.rule[rule]);
		if (!q)
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for SPECs of %u tensors", b->n);
		used[rule] = true;
		b->of[i] = (uint8_t)(q - b->part);
		b->as[i] = q->n;
		q->tensor[q->n++] = i;
	}
	for (uint32_t k = 0; k + 1 < b->rules.n && !b->group->me; k++)
		if (!used[k])
			log_line(
				&b->group->job->log, GRADCOMP_LOG_WARN,
				"SPECs by name: no tensor of this model is for '%s'; there are %u, such as '%s' and '%s'",
				b->rules.rule[k].glob, b->n, tensor_of(b, 0)->name, tensor_of(b, b->n - 1)->name);
	return GRADCOMP_OK;
}

static gradcomp_status prepare(by_name *b, const gradcomp_tensor_desc *tensors, uint32_t n,
                               const gradcomp_reducer_options *o, gradcomp_error *err)
{
	const config *c = b->group->job->config;
	b->options = *o;
	b->options.compressor = strdup(o->compressor ? o->compressor : config_str(c, SET_GRADCOMP_COMPRESSOR));
	if (!b->options.compressor)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	gradcomp_status st = name_rules_parse(b->options.compressor, &b->rules, err);
	if (!st)
		st = layout_make(&b->layout, b->group, tensors, n, o->seed, err);
	if (st)
		return st;
	b->n = n;
	b->of = calloc(n, sizeof *b->of);
	b->as = calloc(n, sizeof *b->as);
	b->given = calloc(n, sizeof *b->given);
	if (!b->of || !b->as || !b->given)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer of %u tensors", n);
	return share_out(b, err);
}

/* Shows the other ranks the whole, so that those that mean something else all learn it, whatever parts they would make. */
static gradcomp_status declare(const by_name *b, gradcomp_status mine, gradcomp_error *err)
{
	const config *c = b->group->job->config;
	const gradcomp_reducer_options *o = &b->options;
	const reducer_request q = {.layout = &b->layout,
	                           .compressor = b->rules.text,
	                           .collective = o->collective ? o->collective : config_str(c, SET_GRADCOMP_COLLECTIVE),
	                           .schedule = o->schedule ? o->schedule : config_str(c, SET_GRADCOMP_SCHEDULE),
	                           .bucket_bytes = o->bucket_bytes,
	                           .delay = o->delay};
	return reducer_consensus(b->group, &q, mine, err);
}

static gradcomp_status make_part(spec_part *q, gradcomp_error *err)
{
	by_name *b = q->of;
	gradcomp_reducer_options o = b->options;
	gradcomp_tensor_desc *desc = calloc(q->n, sizeof *desc);
	if (!desc) {
		/* The others make theirs. */
		job_fail(b->group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer of %u tensors", q->n);
	}
	for (uint32_t i = 0; i < q->n; i++) {
		const gradcomp_tensor *t = tensor_of(b, q->tensor[i]);
		desc[i] = (gradcomp_tensor_desc){.name = t->name, .dims = t->dims, .ndim = t->ndim, .dtype = t->dtype};
	}
	o.compressor = q->rule->spec;
	o.collective = q->rule->collective ? q->rule->collective : o.collective;
	o.done_run = o.done || o.done_run ? part_done : NULL;
	o.done = NULL;
	o.ctx = q;
	gradcomp_status st = reducer_create(b->group, desc, q->n, &o, true, &q->r, err);
	free(desc);
	if (!st) {
		q->r->base.report = part_kept;
		q->r->base.report_ctx = q;
	}
	return st;
}

gradcomp_status by_name_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                             const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err)
{
	gradcomp_error own = {0};
	by_name *b = calloc(1, sizeof *b);
	if (!b) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	b->group = group;
	pthread_mutex_init(&b->lock, NULL);
	gradcomp_status st = prepare(b, tensors, ntensors, options, &own);
	st = declare(b, st, &own);
	for (uint32_t k = 0; !st && k < b->nparts; k++)
		st = make_part(&b->part[k], &own);
	if (st) {
		by_name_free(&b->base);
		return error_set(err, st, "%s", own.text);
	}
	b->base.ops = &ops;
	*out = &b->base;
	return GRADCOMP_OK;
}
