/* predict() of a collective: its figures are not negative, do not shrink as messages grow,
 * and are the same in every call. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "conformance/kit.h"

/* Below the first of the last ones a collective may go from one way to another. */
static const uint64_t sizes[] = {0, 4, 4096, 100000, 4 << 20, 16 << 20, 1 << 30};
enum {
	SIZES = sizeof sizes / sizeof sizes[0],
	GROWING = 4,
	SUMS = GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_CODED_REDUCE_SCATTER
};

/* The first field that is no number from 0 on; NULL: none. */
static const char *fault(const gradcomp_call_load *l, double *value)
{
	const struct {
		const char *name;
		double value;
	} of[] = {{"messages[0]", l->messages[0]},
	          {"messages[1]", l->messages[1]},
	          {"bytes[0]", l->bytes[0]},
	          {"bytes[1]", l->bytes[1]},
	          {"reduced", l->reduced},
	          {"coded", l->coded},
	          {"sent", l->sent},
	          {"left", l->left},
	          {"plain[0]", l->uncoded[0]},
	          {"plain[1]", l->uncoded[1]},
	          {"plain_sent", l->uncoded_sent}};
	for (size_t i = 0; i < sizeof of / sizeof *of; i++)
		if (!isfinite(of[i].value) || of[i].value < 0) {
			*value = of[i].value;
			return of[i].name;
		}
	return NULL;
}

/* Several ranks cannot do anything together without a message. */
static bool silent(const gradcomp_call_load *l, uint32_t primitive, int ranks)
{
	return ranks > 1 && primitive != GRADCOMP_CAN_SHARD && l->messages[0] + l->messages[1] <= 0;
}

static bool same(const gradcomp_call_load *a, const gradcomp_call_load *b)
{
	for (int k = 0; k < 2; k++)
		if (a->messages[k] != b->messages[k] || a->bytes[k] != b->bytes[k] || a->uncoded[k] != b->uncoded[k])
			return false;
	return a->reduced == b->reduced && a->coded == b->coded && a->sent == b->sent && a->left == b->left &&
	       a->uncoded_sent == b->uncoded_sent;
}

/* One primitive in one group; the text of what is wrong, in `out`. */
static bool wrong(const struct gradcomp_collective_v1 *c, const gradcomp_value *values, int ranks, int nodes,
                  uint32_t primitive, char *out, size_t capacity)
{
	gradcomp_call_load last = {0};
	gradcomp_error err;
	for (int s = 0; s < SIZES; s++) {
		gradcomp_call_load l = {.struct_size = sizeof l}, again = l;
		gradcomp_status st = c->predict(values, ranks, nodes, primitive, sizes[s], &l, &err);
		gradcomp_status want = primitive & ~c->serves ? GRADCOMP_ERR_UNSUPPORTED : GRADCOMP_OK;
		const char *what = NULL, *field;
		char number[80];
		double found;
		if (st != want)
			what = want ? "a primitive that is not served is refused with UNSUPPORTED"
			            : "a primitive that is served has a prediction";
		else if (st)
			continue;
		else if ((field = fault(&l, &found))) {
			snprintf(number, sizeof number, "%s is %g; it must be a number from 0 on", field, found);
			what = number;
		} else if (l.uncoded[0] > l.bytes[0] || l.uncoded[1] > l.bytes[1])
			what = "plain is a part of bytes";
		else if (silent(&l, primitive, ranks))
			what = "several ranks need messages";
		else if (c->predict(values, ranks, nodes, primitive, sizes[s], &again, &err) || !same(&l, &again))
			what = "the same arguments give the same numbers";
		else if (s > GROWING && (l.sent < last.sent || l.bytes[0] + l.bytes[1] < last.bytes[0] + last.bytes[1]))
			what = "longer calls do not send less";
		if (what) {
			snprintf(out, capacity, "predict() of primitive %#x, %llu bytes, %d ranks on %d nodes: %s",
			         primitive, (unsigned long long)sizes[s], ranks, nodes, what);
			return true;
		}
		last = l;
	}
	return false;
}

static bool all(const kit_options *o, const struct gradcomp_collective_v1 *c, const gradcomp_value *values, char *out,
                size_t capacity)
{
	for (int ranks = o->ranks_min; ranks <= o->ranks_max; ranks++)
		for (int nodes = 1; nodes <= ranks; nodes++)
			for (int bit = 0; bit < PRIMITIVES; bit++) {
				const uint32_t primitive = 1u << bit,
					       sums = primitive & SUMS ? c->serves & GRADCOMP_CAN_OWNED_SUMS : 0;
				if (wrong(c, values, ranks, nodes, primitive, out, capacity) ||
				    (sums && wrong(c, values, ranks, nodes, primitive | sums, out, capacity)))
					return true;
			}
	return false;
}

void predict_group(kit *k)
{
	const kit_options *o = k->options;
	char text[300];
	if (!k->collective->predict) {
		kit_skip(k, RULE_PREDICT, "there is no predict()");
		return;
	}
	call_begin(CALL_PREDICT, 0, 1, 0);
	if (all(o, k->collective, k->values, text, sizeof text))
		kit_fail(k, RULE_PREDICT, "%s", text);
	else
		kit_ok(k, RULE_PREDICT, "%d..%d ranks, every number of nodes", o->ranks_min, o->ranks_max);
	call_end();
}
