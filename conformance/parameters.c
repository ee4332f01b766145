/* Each parameter at both ends of its range, just outside, and with each choice. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/kit.h"

typedef struct counts {
	int taken, refused, outside;
} counts;

/* Runs a job of two ranks with one parameter set otherwise. */
static void works(kit *k, const char *text, counts *n)
{
	fixture *t = &k->fixture;
	const gradcomp_value *own = t->values;
	gradcomp_spec *spec = NULL;
	gradcomp_error err = {.status = GRADCOMP_OK};
	float *g[RANKS_MAX];
	gradcomp_host host;
	ranks s;
	if (gradcomp_spec_parse(&t->plugin->info, text, &spec, &err)) {
		kit_fail(k, RULE_PARAMETERS, "%s is within the table and refused: %s", text, err.text);
		return;
	}
	host_services(&host, t->op);
	gradcomp_status st = t->plugin->check ? t->plugin->check(&host, spec->values, &err) : GRADCOMP_OK;
	if (!st) {
		st = ranks_open(&s, t->plugin, t->op, spec->values, 2, fixture_models[6].n, fixture_models[6].dims,
		                random_check());
		err = s.err;
	}
	if (st) {
		n->refused++;
		if (!err.text[0])
			kit_fail(k, RULE_PARAMETERS, "%s is refused without a word", text);
		gradcomp_spec_free(spec);
		return;
	}
	t->values = spec->values;
	fixture_gradients_new(&s, g);
	for (int step = 0; step < 2; step++) {
		fixture_fill(t, &s, g, KIND_NORMAL);
		if (ranks_step(&s, g, 0)) {
			kit_fail(k, s.broke ? s.broke : RULE_PARAMETERS, "%s: a step fails: %s", text, s.err.text);
			break;
		}
	}
	n->taken++;
	fixture_gradients_free(&s, g);
	ranks_close(&s);
	t->values = own;
	gradcomp_spec_free(spec);
}

static void refused(kit *k, const char *text, counts *n)
{
	gradcomp_spec *spec = NULL;
	gradcomp_error err;
	if (gradcomp_spec_parse(&k->fixture.plugin->info, text, &spec, &err)) {
		n->outside++;
		return;
	}
	kit_fail(k, RULE_PARAMETERS, "%s is outside of the table and taken", text);
	gradcomp_spec_free(spec);
}

static void numbers(kit *k, const gradcomp_param *p, counts *n)
{
	const char *name = k->fixture.plugin->info.name;
	int whole = p->type != GRADCOMP_PARAM_FLOAT;
	double bounds[2] = {p->min, p->max};
	char text[200];
	for (int i = 0; p->min != p->max && i < 2; i++) {
		double outside = whole ? bounds[i] + (i ? 1 : -1) : nextafter(bounds[i], i ? INFINITY : -INFINITY);
		if (isinf(bounds[i]) || (whole && fabs(bounds[i]) > 0x1p53))
			continue;
		snprintf(text, sizeof text, whole ? "%s:%s=%.0f" : "%s:%s=%.17g", name, p->name, bounds[i]);
		works(k, text, n);
		if (whole && p->type == GRADCOMP_PARAM_SIZE && outside < 0)
			continue;
		snprintf(text, sizeof text, whole ? "%s:%s=%.0f" : "%s:%s=%.17g", name, p->name, outside);
		refused(k, text, n);
	}
	snprintf(text, sizeof text, "%s:%s=x", name, p->name);
	refused(k, text, n);
}

void parameters_group(kit *k)
{
	const gradcomp_plugin_info *info = &k->fixture.plugin->info;
	char text[300];
	counts n = {0, 0, 0};
	if (!info->nparams) {
		kit_skip(k, RULE_PARAMETERS, "there are none");
		return;
	}
	for (uint32_t i = 0; i < info->nparams; i++) {
		const gradcomp_param *p = &info->params[i];
		if (p->type == GRADCOMP_PARAM_INT || p->type == GRADCOMP_PARAM_FLOAT || p->type == GRADCOMP_PARAM_SIZE)
			numbers(k, p, &n);
		for (int c = 0; p->type == GRADCOMP_PARAM_CHOICE && p->choices[c]; c++) {
			snprintf(text, sizeof text, "%s:%s=%s", info->name, p->name, p->choices[c]);
			works(k, text, &n);
		}
		for (int b = 0; p->type == GRADCOMP_PARAM_BOOL && b < 2; b++) {
			snprintf(text, sizeof text, "%s:%s=%s", info->name, p->name, b ? "yes" : "no");
			works(k, text, &n);
		}
		if (p->def)
			continue;
		snprintf(text, sizeof text, "%s", info->name);
		refused(k, text, &n);
	}
	if (n.taken + n.refused)
		kit_ok(k, RULE_PARAMETERS,
		       "%d values of the table work, %d are refused by the plugin in words, %d outside of it by the host",
		       n.taken, n.refused, n.outside);
	else
		kit_ok(k, RULE_PARAMETERS, "%d values outside of the table are refused by the host", n.outside);
}
