/* A plan as training programs take it. Each has names of its own for the degrees; ranks are laid out alike in all of
 * them: those that divide matrices are next to each other, then those that share samples, then stages. */
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/plan.h"

/* Holds what a program is told. */
typedef struct degrees {
	const plan *p;
	const hybrid_plan *plan;
	uint32_t data, tensor, pipeline, microbatches;
	uint64_t batch, micro; /* samples: of a step, and of a rank's micro-batch */
	uint32_t *layers;      /* transformer layers of each stage */
} degrees;

/* 0, or 1 after a message. */
typedef int emit(const degrees *d);

/* With the versions whose sources have these names. */
typedef struct trainer {
	const char *name, *versions;
	emit *print;
} trainer;

static int print_torchtitan(const degrees *d)
{
	printf("--parallelism.data_parallel_replicate_degree=%u --parallelism.data_parallel_shard_degree=1 "
	       "--parallelism.tensor_parallel_degree=%u --parallelism.pipeline_parallel_degree=%u "
	       "--parallelism.pipeline_parallel_schedule=1F1B --parallelism.pipeline_parallel_microbatch_size=%llu "
	       "--training.local_batch_size=%llu --training.global_batch_size=%llu\n",
	       d->data, d->tensor, d->pipeline, (unsigned long long)d->micro, (unsigned long long)(d->batch / d->data),
	       (unsigned long long)d->batch);
	return 0;
}

/* Its stages have as many layers each, but for the first and the last one. */
static int print_megatron(const degrees *d)
{
	const uint32_t last = d->pipeline - 1, middle = d->layers[last ? 1 : 0];
	for (uint32_t i = 1; i < last; i++)
		if (d->layers[i] != middle) {
			fprintf(stderr,
			        "gradcomp: stages of %u and of %u layers in the middle of the pipeline: megatron gives those "
			        "as many each; ask for other --nodes or --microbatches\n",
			        middle, d->layers[i]);
			return 1;
		}
	printf("--tensor-model-parallel-size %u --pipeline-model-parallel-size %u --micro-batch-size %llu --global-batch-size "
	       "%llu",
	       d->tensor, d->pipeline, (unsigned long long)d->micro, (unsigned long long)d->batch);
	if (last && (d->layers[0] != middle || d->layers[last] != middle))
		printf(" --decoder-first-pipeline-num-layers %u --decoder-last-pipeline-num-layers %u", d->layers[0],
		       d->layers[last]);
	putchar('\n');
	return 0;
}

static int print_deepspeed(const degrees *d)
{
	jsonw j;
	json_put_start(&j, stdout);
	json_put_object(&j, NULL);
	json_put_uint(&j, "train_batch_size", d->batch);
	json_put_uint(&j, "train_micro_batch_size_per_gpu", d->micro);
	json_put_uint(&j, "gradient_accumulation_steps", d->microbatches);
	json_put_object(&j, "tensor_parallel");
	json_put_uint(&j, "autotp_size", d->tensor);
	json_put_end(&j);
	json_put_object(&j, "pipeline");
	json_put_uint(&j, "stages", d->pipeline);
	json_put_end(&j);
	json_put_end(&j);
	json_put_finish(&j);
	return 0;
}

static const trainer trainers[] = {
	{"torchtitan", "0.3", print_torchtitan},
	{"megatron", "core 0.20", print_megatron},
	{"deepspeed", "0.19", print_deepspeed},
};
enum { TRAINERS = sizeof trainers / sizeof *trainers };

static const trainer *find(const char *name, size_t length)
{
	for (int i = 0; i < TRAINERS; i++)
		if (strlen(trainers[i].name) == length && !strncmp(trainers[i].name, name, length))
			return &trainers[i];
	return NULL;
}

int plan_emit_check(const char *name, const char *usage)
{
	const char *at = strchr(name, '@');
	const trainer *t = find(name, strcspn(name, "@"));
	if (t && at)
		return command_usage_error(
			usage, "--emit is '%s'; names are those of %s %s: write %s, and look at what it says of them",
			name, t->name, t->versions, t->name);
	return t ? -1 : command_usage_value(usage, "--emit", name, "it can be torchtitan, megatron, deepspeed");
}

/* Where the stages are cut, and what a program is not told by its arguments, for people. */
static void tell(const degrees *d)
{
	for (uint32_t i = 0; d->pipeline > 1 && i < d->pipeline; i++) {
		const hybrid_stage *s = &d->plan->stages[i];
		const model_layer *first = &d->p->model->layers[s->first];

		fprintf(stderr, "gradcomp: stage %u has %s to %s\n", i, first->name, first[s->nlayers - 1].name);
	}
	if (d->plan->stages[0].compressor)
		fprintf(stderr, "gradcomp: the plan's gradients are reduced with %s\n", d->plan->stages[0].compressor);
}

int plan_emit(const plan *p, const char *name, const hybrid_plan *h, uint32_t microbatches, const gradcomp_error *why)
{
	degrees d = {.p = p, .plan = h, .microbatches = microbatches};
	int status;
	if (!h)
		return command_failed(why);
	d.data = h->stages[0].data;
	d.tensor = h->stages[0].tensor;
	d.pipeline = h->nstages;
	d.batch = h->batch;
	d.micro = h->batch / microbatches / d.data;
	d.layers = calloc(h->nstages, sizeof *d.layers);
	if (!d.layers) {
		fprintf(stderr, "gradcomp: no memory for %u stages\n", h->nstages);
		return 1;
	}
	/* Those whose matrices can be divided in both halves: neither embeddings nor the head. */
	for (uint32_t i = 0; i < h->nstages; i++)
		for (uint32_t k = 0; k < h->stages[i].nlayers; k++)
			d.layers[i] += p->model->layers[h->stages[i].first + k].reduces > 1;
	status = find(name, strlen(name))->print(&d);
	if (!status)
		tell(&d);
	free(d.layers);
	return status;
}
