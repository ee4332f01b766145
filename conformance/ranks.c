#include "conformance/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/call.h"
#include "conformance/fenced_device.h"

void ranks_plan(ranks *s, uint64_t most)
{
	s->nbuckets = 0;
	for (uint32_t i = s->first; i < s->layout[0].ntensors; i++) {
		gradcomp_bucket *b = s->nbuckets ? &s->buckets[s->nbuckets - 1] : NULL;
		if (!b || b->numel + s->tensors[i].numel > most) {
			b = &s->buckets[s->nbuckets];
			*b = (gradcomp_bucket){.struct_size = sizeof *b,
			                       .index = s->nbuckets++,
			                       .first = i,
			                       .offset = s->tensors[i].offset};
		}
		b->ntensors++;
		b->numel += s->tensors[i].numel;
	}
}

void ranks_close(ranks *s)
{
	for (int w = 0; w < s->P; w++) {
		call_begin(CALL_DESTROY, w, s->P, 0);
		s->plugin->destroy(s->instance[w]);
		call_end();
		free(s->error[w]);
		free(s->state[w]);
	}
}

bool ranks_far;

static void describe_tensors(ranks *s, uint32_t ntensors, uint64_t (*dims)[2])
{
	static uint64_t far[2] = {(uint64_t)1 << 32, 0};
	uint64_t numel = 0;
	s->first = ranks_far;
	for (uint32_t i = 0; i < s->first + ntensors; i++) {
		uint64_t *of = i < s->first ? far : dims[i - s->first];
		s->tensors[i] = (gradcomp_tensor){.name = "tensor",
		                                  .offset = numel,
		                                  .dims = of,
		                                  .ndim = of[1] ? 2 : 1,
		                                  .numel = of[0] * (of[1] ? of[1] : 1)};
		numel += s->tensors[i].numel;
	}
	s->base = s->first ? far[0] : 0;
	s->numel = numel - s->base;
}

uint32_t ranks_patterns;
gradcomp_device ranks_device;

uint32_t ranks_planned(const struct gradcomp_compressor_v1 *plugin)
{
	return ranks_patterns ? ranks_patterns : plugin->patterns;
}

gradcomp_status ranks_open(ranks *s, const struct gradcomp_compressor_v1 *plugin, const gradcomp_operators *op,
                           const gradcomp_value *values, int P, uint32_t ntensors, uint64_t (*dims)[2], uint64_t seed)
{
	*s = (ranks){.plugin = plugin,
	             .values = values,
	             .P = P,
	             .intact = 1,
	             .patterns = ranks_planned(plugin),
	             .device = ranks_device};
	host_services(&s->host, op);
	if (s->device)
		s->device_operators = fenced_device_operators(op);
	if (plugin->state_arrays > STATES_MAX) {
		s->P = 0;
		return host_fail(&s->err, GRADCOMP_ERR_UNSUPPORTED, "%u state arrays, the harness has %d",
		                 plugin->state_arrays, STATES_MAX);
	}
	describe_tensors(s, ntensors, dims);
	for (int w = 0; w < P; w++) {
		s->layout[w] = (gradcomp_layout){.struct_size = sizeof s->layout[w],
		                                 .ntensors = s->first + ntensors,
		                                 .tensors = s->tensors,
		                                 .numel = s->base + s->numel,
		                                 .rank = w,
		                                 .nranks = P,
		                                 .seed = seed,
		                                 .patterns = s->patterns,
		                                 .device = s->device};
		s->error[w] = calloc(s->numel + 1, sizeof(float));
		s->state[w] = calloc(s->numel * plugin->state_arrays + 1, sizeof(float));
		gradcomp_status st = GRADCOMP_ERR_NOMEM;
		host_values lent;
		const gradcomp_value *own = host_lend(&lent, &plugin->info, values);
		call_begin(CALL_CREATE, w, P, 0);
		if (s->error[w] && s->state[w])
			st = plugin->create(&s->host, own, &s->layout[w], &s->instance[w], &s->err);
		call_end();
		host_take_back(&lent);
		if (st) {
			s->P = w + 1;
			ranks_close(s);
			return st;
		}
	}
	ranks_plan(s, UINT64_MAX);
	return GRADCOMP_OK;
}

gradcomp_status ranks_carry(ranks *from, ranks *to, int w)
{
	uint64_t bytes = 0;
	gradcomp_status st;
	memcpy(to->error[w], from->error[w], from->numel * sizeof(float));
	memcpy(to->state[w], from->state[w], from->plugin->state_arrays * from->numel * sizeof(float));
	to->step = from->step;
	if (!from->plugin->save)
		return GRADCOMP_OK;
	st = ranks_call(from, &(call){.which = CALL_SAVE, .rank = w, .bytes = &bytes});
	guarded g = guard("the saved state", bytes, 8);
	if (!st)
		st = ranks_call(from, &(call){.which = CALL_SAVE,
		                              .rank = w,
		                              .to = g.data,
		                              .capacity = bytes,
		                              .bytes = &bytes});
	guard_lock(&g, 1);
	if (!st)
		st = ranks_call(to, &(call){.which = CALL_LOAD, .rank = w, .from = g.data, .capacity = bytes});
	if (st && !to->err.text[0])
		to->err = from->err;
	guard_free(&g);
	return st;
}
