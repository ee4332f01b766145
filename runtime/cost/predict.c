/* Predicts what a training step will cost: planning.h. */
#include "cost/plan_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/record_io.h"
#include "base/json.h"
#include "cost/machine.h"
#include "schedule/plan_file.h"

#define RANKS_MOST (1 << 20)

/* Threads of the simulated rank, microseconds: for chrome://tracing and Perfetto. */
static void print_trace(FILE *out, const void *what)
{
	static const char *const threads[] = {"application", "compute", "exchange"};
	const sim_output *sim = what;
	jsonw j;
	json_put_start(&j, out);
	json_put_object(&j, NULL);
	json_put_string(&j, "displayTimeUnit", "ms");
	json_put_array(&j, "traceEvents");
	for (int t = 0; t < 3; t++) {
		json_put_object(&j, NULL);
		json_put_string(&j, "ph", "M");
		json_put_string(&j, "name", "thread_name");
		json_put_int(&j, "pid", 0);
		json_put_int(&j, "tid", t);
		json_put_object(&j, "args");
		json_put_string(&j, "name", threads[t]);
		json_put_end(&j);
		json_put_end(&j);
	}
	for (uint32_t i = 0; i < sim->nevents; i++) {
		const sim_event *e = &sim->events[i];

		json_put_object(&j, NULL);
		json_put_string(&j, "ph", "X");
		json_put_string(&j, "name", e->what);
		json_put_string(&j, "cat", "predicted");
		json_put_int(&j, "pid", 0);
		json_put_int(&j, "tid", e->thread);
		json_put_float(&j, "ts", e->start * 1e6);
		json_put_float(&j, "dur", (e->end - e->start) * 1e6);
		json_put_object(&j, "args");
		json_put_uint(&j, e->thread == SIM_APPLICATION ? "tensor" : "bucket", e->index);
		if (e->thread != SIM_APPLICATION)
			json_put_uint(&j, "round", e->round);
		json_put_end(&j);
		json_put_end(&j);
	}
	json_put_end(&j);
	json_put_end(&j);
	json_put_finish(&j);
}

static gradcomp_status check_question(const cost_question *q, gradcomp_error *err)
{
	if (!q->nodes || !q->ranks_per_node || q->nodes > RANKS_MOST || q->ranks_per_node > MACHINE_RANKS_MOST ||
	    (uint64_t)q->nodes * q->ranks_per_node > RANKS_MOST)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%u nodes with %u ranks each: must be at least 1, and together at most %d ranks",
		                 q->nodes, q->ranks_per_node, RANKS_MOST);
	for (uint32_t i = 0; i < q->nclasses; i++)
		if (!(q->classes[i].speed > 0) || !isfinite(q->classes[i].speed))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "class %u of ranks has a speed of %g; must be more than 0", i,
			                 q->classes[i].speed);
	return GRADCOMP_OK;
}

static gradcomp_status answer(const model_file *model, const machine_file *machine, const cost_question *q,
                              cost_model *c, plan_choice *choice, gradcomp_error *err)
{
	gradcomp_status st = model_check(model, err);
	if (!st)
		st = machine_check(machine, err);
	if (!st)
		st = check_question(q, err);
	if (!st)
		st = cost_open(c, model, machine, (int32_t)q->nodes, (int32_t)q->ranks_per_node, q->compressor,
		               q->collective, err);
	if (st)
		return st;
	st = plan_choose(c, q, choice, err);
	if (!st && q->trace)
		st = record_io_publish("timeline", q->trace, print_trace, &choice->sim, err);
	if (st) {
		plan_choice_clear(choice);
		cost_clear(c);
	}
	return st;
}

gradcomp_status cost_predict(const model_file *model, const machine_file *machine, const cost_question *question,
                             cost_prediction *out, gradcomp_error *err)
{
	plan_choice choice = {.plan = {0}};
	cost_model c;
	gradcomp_status st = answer(model, machine, question, &c, &choice, err);
	if (st)
		return st;
	*out = (cost_prediction){.buckets = choice.plan.nbuckets};
	out->step_s = choice.sim.step;
	/* Schedules have anomalies: less work may end later. */
	out->least_s = fmin(choice.least, choice.sim.step);
	out->most_s = fmax(choice.most, choice.sim.step);
	for (uint32_t i = 0; i < model->ntensors; i++)
		out->compute_s +=
			model->tensors[i].forward + model->tensors[i].backward * model_backward_alone(model, machine);
	out->compute_s = out->compute_s / plan_slowest_speed(question) + model->update;
	out->exposed_s = choice.sim.exposed;
	out->encode_s = choice.cost.encode;
	out->exchange_s = choice.cost.exchange;
	out->decode_s = choice.cost.decode;
	out->sent_bytes = choice.cost.sent;
	out->node_bytes = choice.cost.left;
	plan_choice_clear(&choice);
	cost_clear(&c);
	return GRADCOMP_OK;
}

gradcomp_status cost_plan_write(const char *path, const model_file *model, const machine_file *machine,
                                const cost_question *question, gradcomp_error *err)
{
	plan_choice choice = {.plan = {0}};
	plan_file file = {.hash = 0};
	cost_model c;
	gradcomp_status st = answer(model, machine, question, &c, &choice, err);
	if (st)
		return st;
	memcpy(file.model, model->name, sizeof file.model);
	file.hash = plan_model_hash(model);
	file.tensors = model->ntensors;
	for (uint32_t i = 0; i < model->ntensors; i++)
		file.parameters += model_numel(&model->tensors[i]);
	file.compressor = c.specs[0]->text;
	file.collective = c.specs[1]->text;
	file.plan = choice.plan;
	st = plan_file_write(path, &file, err);
	plan_choice_clear(&choice);
	cost_clear(&c);
	return st;
}
