/* TRAIT_CUDA: the same bits as on the host, and no touch but by operators. */
#include "device.h"
#include "kit.h"

void group_device(kit *k)
{
	const subject *t = &k->subject;
	long steps = 0;

	if (!(t->plugin->traits & GRADCOMP_TRAIT_CUDA)) {
		kit_skip(k, RULE_DEVICE, "trait CUDA is not there");
		return;
	}
	if (t->plugin->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)) {
		kit_skip(k, RULE_DEVICE, "the code functions work on host memory");
		return;
	}
	for (int m = 0; m < MODELS; m++)
		for (int P = 1; P <= 3; P++) {
			ranks a, b;
			if (!kit_open(k, &a, P, &models[m]))
				return;
			if (!ranks_open(&b, t->plugin, t->op, t->values, P, models[m].n, models[m].dims, a.layout[0].seed)) {
				b.device = GRADCOMP_CUDA;
				b.device_operators = device_operators(t->op);
				steps += kit_run_alike(k, RULE_DEVICE, "on the fenced device", &a, &b, 3);
				ranks_close(&b);
			}
			ranks_close(&a);
		}
	kit_ok(k, RULE_DEVICE, "%ld runs with fenced buffers, the bits of the host", steps);
}
