/* gradcomp plan: what a step of a model will take on a machine, and what it would be best
 * to ask for there. */
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "base/number.h"
#include "base/thread_pool.h"
#include "tools/plan.h"

static int scale_compute(plan *p, const char *seconds)
{
	double all = 0, want;
	for (uint32_t i = 0; i < p->model->ntensors; i++)
		all += p->model->tensors[i].forward + p->model->tensors[i].backward;
	if (number_float(seconds, &want) != NUMBER_OK || !(want > 0 && want <= 3600))
		return command_usage_value(plan_usage, "--compute", seconds,
		                           "give the seconds of both passes, at most 3600");
	if (!(all > 0))
		return command_usage_error(plan_usage,
		                           "--compute: the passes of model %s take no time, which cannot be scaled",
		                           p->model->name);
	for (uint32_t i = 0; i < p->model->ntensors; i++) {
		p->model->tensors[i].forward *= want / all;
		p->model->tensors[i].backward *= want / all;
	}
	/* That is of passes by themselves. */
	p->model->exchanging = p->model->compressing = 0;
	return -1;
}

/* One SPEC for comparison, which is also predicted; `usual` where none is asked for, if there is one. */
static gradcomp_status take_reference(plan *p, const char *asked, const char *usual, const char *option, plan_spec *out,
                                      gradcomp_error *err)
{
	const char *spec = asked ? asked : usual;
	plan_specs *one = calloc(1, sizeof *one);
	gradcomp_error why;
	gradcomp_status st = GRADCOMP_OK;
	if (!spec) {
		free(one);
		return GRADCOMP_OK;
	}
	if (!one) {
		err->status = GRADCOMP_ERR_NOMEM;
		snprintf(err->text, sizeof err->text, "no memory for a SPEC");
		return err->status;
	}
	if (plan_take_specs(GRADCOMP_KIND_COMPRESSOR, spec, option, one, &why)) {
		if (asked)
			*err = why;
		st = asked ? why.status : plan_skip_note(p, spec, why.text, err);
	} else {
		*out = one->spec[0];
		st = plan_take_specs(GRADCOMP_KIND_COMPRESSOR, spec, option, &p->compressors, err);
	}
	free(one);
	return st;
}

/* The first compressor of the machine that is dense and sends half of each number; NULL: none does. */
static const char *usual_half(const machine_file *m)
{
	for (uint32_t i = 0; i < m->ncurves; i++) {
		gradcomp_error unusable;
		double share;

		if (!cost_dense_share(m, m->curves[i].compressor, &share, &unusable) && share > 0.49 && share < 0.51)
			return m->curves[i].compressor;
	}
	return NULL;
}

static gradcomp_status take_lists(plan *p, const plan_arguments *a, gradcomp_error *err)
{
	/* Stages have what was asked for and nothing to be compared with. */
	int compared = !a->parallel || !a->compressors;
	gradcomp_status st = GRADCOMP_OK;
	if (compared)
		st = take_reference(p, a->dense, cost_default_compressor(), "--dense", &p->dense, err);
	if (!st && compared)
		st = take_reference(p, a->half, usual_half(p->machine), "--half", &p->half, err);
	if (!st)
		st = a->compressors ? plan_take_specs(GRADCOMP_KIND_COMPRESSOR, a->compressors, "--compressors",
		                                      &p->compressors, err)
		                    : plan_take_curves(p, err);
	if (!st)
		st = plan_take_specs(GRADCOMP_KIND_COLLECTIVE, a->collectives, "--collectives", &p->collectives, err);
	if (!st)
		st = plan_take_schedules(a->schedules, &p->schedules, err);
	return st;
}

/* The best plan for one number of nodes. */
static gradcomp_status write_files(const plan *p, const plan_arguments *a, gradcomp_error *err)
{
	cost_prediction out = {0};
	gradcomp_status st = GRADCOMP_OK;
	cost_question q;
	if (!a->output && !a->trace)
		return GRADCOMP_OK;
	const plan_table *t = &p->tables[0];
	q = plan_question(p, t, t->best, t->nodes);
	if (a->output)
		st = cost_plan_write(a->output, p->model, &t->machine, &q, err);
	if (!st && a->trace) {
		q.trace = a->trace;
		st = cost_predict(p->model, &t->machine, &q, &out, err);
	}
	return st;
}

static int predict(plan *p, const plan_arguments *a)
{
	gradcomp_error err;
	int any = 0, cpus = thread_pool_cpus(), threads = cpus < PLAN_THREADS_MOST ? cpus : PLAN_THREADS_MOST;
	if (plan_sweep(p, threads, &err) || plan_weigh_classes(p, &err) ||
	    (p->need > 0 && plan_find_needs(p, threads, &err)))
		return command_failed(&err);
	for (int n = 0; n < p->ntables; n++)
		any |= p->tables[n].best != NULL;
	if (any && write_files(p, a, &err))
		return command_failed(&err);
	if (a->hybrid.json)
		plan_json(p, stdout);
	else if (p->need > 0)
		plan_show_needs(p);
	else
		plan_show(p);
	if (!any)
		fprintf(stderr, "gradcomp: no combination can be predicted; the reasons are above\n");
	return !any;
}

int cmd_plan(int argc, char **argv)
{
	static plan p;
	plan_arguments a = {.model = NULL};
	gradcomp_error err;
	int status = plan_parse(argc, argv, &a, &p);
	if (status >= 0)
		return status;
	if (a.kineto ? plan_import_kineto(a.kineto, a.names, &p.model, &err)
	             : plan_model(a.model, a.ntokens, a.compute != NULL, &p.model, &err)) {
		status = command_failed(&err);
		goto done;
	}
	if (a.compute && (status = scale_compute(&p, a.compute)) >= 0)
		goto done;
	if (a.save) {
		status = model_file_write(a.save, p.model, &err) ? command_failed(&err) : 0;
		goto done;
	}
	if (machine_file_read(a.machine, &p.machine, &err)) {
		status = command_failed(&err);
		goto done;
	}
	if (!p.nnodes)
		p.nodes[p.nnodes++] = p.machine->nodes;
	if (!p.ranks_per_node)
		p.ranks_per_node = p.machine->ranks_per_node;
	if ((a.measured && (status = plan_measured_classes(&p, a.measured)) >= 0) ||
	    (status = plan_check_classes(&p, plan_usage)) >= 0)
		goto done;
	if (take_lists(&p, &a, &err)) {
		status = command_failed(&err);
		goto done;
	}
	status = a.parallel ? plan_parallel(&p, &a.hybrid, plan_usage) : predict(&p, &a);
done:
	plan_free(&p);
	return status;
}
