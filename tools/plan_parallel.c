/* gradcomp plan --parallel: data, tensor and pipeline degrees of a transformer. */
#include <string.h>

#include "tools/commands.h"
#include "base/number.h"
#include "tools/plan.h"

enum { MICROBATCHES = 8, STATE = 8, SHOWN = 100 };

/* -1 go on, else the exit status. */
static int take_numbers(const plan_hybrid *h, hybrid_question *q, const char *usage)
{
	int64_t n;
	if (!h->memory)
		return command_usage_error(usage, "--parallel needs --memory, the bytes that a rank has, such as 40G");
	if (number_size(h->memory, &n) != NUMBER_OK || n < 1)
		return command_usage_value(usage, "--memory", h->memory, "give the bytes that a rank has, such as 40G");
	q->memory = (double)n;
	if (h->microbatches) {
		if (number_int(h->microbatches, &n) != NUMBER_OK || n < 1 || n > 65536)
			return command_usage_value(usage, "--microbatches", h->microbatches, "it can be 1 to 65536");
		q->microbatches = (uint32_t)n;
	}
	if (h->batch) {
		if (number_int(h->batch, &n) != NUMBER_OK || n < 1 || n > (int64_t)1 << 40)
			return command_usage_value(usage, "--batch", h->batch,
			                           "give the samples of a step, of all ranks");
		q->batch = (uint64_t)n;
	}
	if (h->state && (number_float(h->state, &q->state) != NUMBER_OK || q->state < 0 || q->state > 1024))
		return command_usage_value(usage, "--state", h->state,
		                           "give the optimizer's bytes a parameter, 0 to 1024");
	return -1;
}

/* "h.0..h.11", or one name. */
static void layers_text(const plan *p, const hybrid_stage *s, char out[SHOWN])
{
	const model_layer *first = &p->model->layers[s->first];
	if (s->nlayers == 1)
		snprintf(out, SHOWN, "%s", first->name);
	else
		snprintf(out, SHOWN, "%.48s..%.48s", first->name, first[s->nlayers - 1].name);
}

/* How the compressors' list shows it. */
static const char *compressor_text(const plan *p, const hybrid_stage *s)
{
	for (int i = 0; s->compressor && i < p->compressors.n; i++)
		if (!strcmp(p->compressors.spec[i].text, s->compressor))
			return p->compressors.spec[i].shown;
	return "-";
}

/* Layers that could be divided, and are not. */
static void print_held(const plan *p, const hybrid_stage *s, uint32_t at)
{
	const char *between = "";
	for (uint32_t i = s->first; i < s->first + s->nlayers; i++)
		if (hybrid_stage_holds(p->model, s, i)) {
			if (!*between)
				printf("stage %u holds whole on every rank: ", at);
			printf("%s%s", between, p->model->layers[i].name);
			between = ", ";
		}
	if (*between)
		putchar('\n');
}

/* Samples a second; 0 where a step takes no time. */
static double rate(const hybrid_plan *h)
{
	return h->step_s > 0 ? (double)h->batch / h->step_s : 0;
}

static void print_plan(const plan *p, const hybrid_plan *h)
{
	int width = 6;
	for (uint32_t i = 0; i < h->nstages; i++) {
		char text[SHOWN];

		layers_text(p, &h->stages[i], text);
		width = (int)strlen(text) > width ? (int)strlen(text) : width;
	}
	printf("%5s  %-*s %6s %10s %5s %7s %14s %12s %10s  %s\n", "stage", width, "layers", "nodes", "ranks/node",
	       "data", "tensor", "ms/micro-batch", "gradients ms", "memory GB", "compressor");
	for (uint32_t i = 0; i < h->nstages; i++) {
		const hybrid_stage *s = &h->stages[i];
		char text[SHOWN];

		layers_text(p, s, text);
		printf("%5u  %-*s %6u %10u %5u %7u %14.3f %12.3f %10.2f  %s\n", i, width, text, s->nodes,
		       s->ranks_per_node, s->data, s->tensor, s->seconds * 1e3, s->gradient_s * 1e3, s->memory / 1e9,
		       compressor_text(p, s));
	}
	for (uint32_t i = 0; i < h->nstages; i++)
		print_held(p, &h->stages[i], i);
	printf("a step of %llu samples takes %.3f ms", (unsigned long long)h->batch, h->step_s * 1e3);
	if (h->step_s > 0)
		printf(": %.4g samples a second", rate(h));
	putchar('\n');
}

/* The plans of one question, by hybrid_shape; NULL, and why, for a shape that has none. */
typedef struct plans {
	hybrid_question q;
	hybrid_plan *of[HYBRID_SHAPES];
	gradcomp_error why[HYBRID_SHAPES];
} plans;

static const char *const shape_keys[] = {"plan", "uniform", "data", "tensor", "pipeline"};

/* The share of a step in which its slowest stage waits for the first micro-batch, or after the last. */
static double bubble(const hybrid_plan *h)
{
	double sum = 0, most = 0;
	for (uint32_t i = 0; i < h->nstages; i++) {
		sum += h->stages[i].seconds;
		most = h->stages[i].seconds > most ? h->stages[i].seconds : most;
	}
	return h->step_s > 0 ? (sum - most) / h->step_s : 0;
}

/* The share of all ranks' time that the model's own passes take. */
static double utilisation(const plan *p, const plans *all, const hybrid_plan *h)
{
	const double ranks = (double)all->q.nodes * all->q.ranks_per_node;
	double seconds = 0;
	for (uint32_t i = 0; i < p->model->ntensors; i++)
		seconds += p->model->tensors[i].forward + p->model->tensors[i].backward;
	return h->step_s > 0 ? seconds / (double)p->model->batch * (double)h->batch / ranks / h->step_s : 0;
}

static double most_memory(const hybrid_plan *h)
{
	double most = 0;
	for (uint32_t i = 0; i < h->nstages; i++)
		most = h->stages[i].memory > most ? h->stages[i].memory : most;
	return most;
}

static void put_plan(jsonw *j, const char *key, const plan *p, const plans *all, const hybrid_plan *h)
{
	json_put_object(j, key);
	json_put_float(j, "step_s", h->step_s);
	json_put_uint(j, "batch", h->batch);
	json_put_float(j, "bubble", bubble(h));
	json_put_float(j, "utilisation", utilisation(p, all, h));
	json_put_array(j, "stages");
	for (uint32_t i = 0; i < h->nstages; i++) {
		const hybrid_stage *s = &h->stages[i];

		json_put_object(j, NULL);
		json_put_uint(j, "first_layer", s->first);
		json_put_uint(j, "layers", s->nlayers);
		json_put_string(j, "first_name", p->model->layers[s->first].name);
		json_put_uint(j, "nodes", s->nodes);
		json_put_uint(j, "ranks_per_node", s->ranks_per_node);
		json_put_uint(j, "data", s->data);
		json_put_uint(j, "tensor", s->tensor);
		json_put_array(j, "held");
		for (uint32_t k = s->first; k < s->first + s->nlayers; k++)
			if (hybrid_stage_holds(p->model, s, k))
				json_put_string(j, NULL, p->model->layers[k].name);
		json_put_end(j);
		json_put_string(j, "compressor", s->compressor);
		json_put_float(j, "seconds", s->seconds);
		json_put_float(j, "gradient_s", s->gradient_s);
		json_put_float(j, "memory", s->memory);
		json_put_end(j);
	}
	json_put_end(j);
	json_put_end(j);
}

static void print_json(const plan *p, const plans *all)
{
	const hybrid_question *q = &all->q;
	jsonw j;
	json_put_start(&j, stdout);
	json_put_object(&j, NULL);
	json_put_string(&j, "model", p->model->name);
	json_put_string(&j, "machine", p->machine->name);
	json_put_uint(&j, "nodes", q->nodes);
	json_put_uint(&j, "ranks_per_node", q->ranks_per_node);
	json_put_uint(&j, "microbatches", q->microbatches);
	json_put_float(&j, "memory", q->memory);
	for (int i = HYBRID_ANY; i <= HYBRID_PIPELINE; i++) {
		if (all->of[i])
			put_plan(&j, shape_keys[i], p, all, all->of[i]);
		else
			json_put_null(&j, shape_keys[i]);
	}
	json_put_end(&j);
	json_put_finish(&j);
}

/* A row for each way of sharing the work, and why one is not there. */
static void print_shapes(const plan *p, const plans *all)
{
	char text[SHOWN];
	printf("%-34s %11s %10s %7s %12s %10s\n", "the work is shared by", "ms a step", "samples/s", "bubble",
	       "utilisation", "memory GB");
	for (int i = HYBRID_DATA; i <= HYBRID_PIPELINE + 2; i++) {
		const int shape = i <= HYBRID_PIPELINE ? i : i == HYBRID_PIPELINE + 1 ? HYBRID_UNIFORM : HYBRID_ANY;
		const hybrid_plan *h = all->of[shape];
		const uint32_t ranks = all->q.nodes * all->q.ranks_per_node;

		if (shape == HYBRID_ANY)
			snprintf(text, sizeof text, "the first plan");
		else if (shape == HYBRID_UNIFORM && h)
			snprintf(text, sizeof text, "data %u x tensor %u x pipeline %u", h->stages[0].data,
			         h->stages[0].tensor, h->nstages);
		else
			snprintf(text, sizeof text, "%s %u",
			         shape == HYBRID_UNIFORM ? "the same degrees of" : shape_keys[shape], ranks);
		if (h)
			printf("%-34s %11.3f %10.4g %5.1f %% %10.1f %% %10.2f\n", text, h->step_s * 1e3, rate(h),
			       100 * bubble(h), 100 * utilisation(p, all, h), most_memory(h) / 1e9);
		else
			printf("%-34s %s\n", text, all->why[shape].text);
	}
}

static void print_tables(const plan *p, const plans *all)
{
	const hybrid_question *q = &all->q;
	const hybrid_plan *uniform = all->of[HYBRID_UNIFORM];
	printf("%s on %u x %u ranks of %s, %.3g GB each, %u micro-batches\n\n", p->model->name, q->nodes,
	       q->ranks_per_node, p->machine->name, q->memory / 1e9, q->microbatches);
	print_plan(p, all->of[HYBRID_ANY]);
	if (uniform) {
		const hybrid_stage *s = &uniform->stages[0];

		printf("\nwith the same degrees in all stages, data %u x tensor %u x pipeline %u:\n\n", s->data,
		       s->tensor, uniform->nstages);
		print_plan(p, uniform);
	} else {
		printf("\nwith the same degrees in all stages: %s\n", all->why[HYBRID_UNIFORM].text);
	}
	putchar('\n');
	print_shapes(p, all);
}

int plan_parallel(plan *p, const plan_hybrid *h, const char *usage)
{
	plans all = {.q = {.nodes = p->nodes[0],
	                   .ranks_per_node = p->ranks_per_node,
	                   .microbatches = MICROBATCHES,
	                   .state = STATE}};
	const char *list[PLAN_SPECS + 1] = {NULL};
	int status = take_numbers(h, &all.q, usage);
	if (status >= 0)
		return status;
	for (int i = 0; i < p->compressors.n; i++)
		list[i] = p->compressors.spec[i].text;
	all.q.compressors = list;
	all.q.collective = p->collectives.n == 1 ? p->collectives.spec[0].text : NULL;
	hybrid_plan_shapes(p->model, p->machine, &all.q, all.of, all.why);
	if (!all.of[HYBRID_ANY])
		status = command_failed(&all.why[HYBRID_ANY]);
	else if (h->emit)
		status = plan_emit(p, h->emit, all.of[HYBRID_UNIFORM], all.q.microbatches, &all.why[HYBRID_UNIFORM]);
	else if (h->json)
		print_json(p, &all);
	else
		print_tables(p, &all);
	for (int i = HYBRID_ANY; i <= HYBRID_PIPELINE; i++)
		hybrid_plan_free(all.of[i]);
	return status >= 0 ? status : 0;
}
