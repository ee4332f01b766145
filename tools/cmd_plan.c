/* gradcomp plan: what a step of a model will take on a machine, and what it would be best
 * to ask for there. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "number.h"
#include "plan.h"

static const char usage[] = "usage: gradcomp plan --model MODEL --machine FILE [OPTION]...\n"
			    "Predicts the step of every compressor, collective and schedule, the quickest first,\n"
			    "and says why. MODEL is a model file, or the name of one that is installed; FILE is\n"
			    "what gradcomp probe wrote. SPECs of a list are parted by '/', or by ';' where a SPEC\n"
			    "has a '/' of its own.\n\n"
			    "  --all                  print every combination\n"
			    "  --batch N              --parallel: samples of a step, of all ranks (the model's,\n"
			    "                         for each)\n"
			    "  --collectives SPECS    these alone (all that are installed)\n"
			    "  --compressors SPECS    these alone (all that the machine file has a curve of)\n"
			    "  --compute SECONDS      what both passes take, in place of the model's seconds\n"
			    "  --dense SPEC           what is compared with: fp32 (none)\n"
			    "  --each-layer           the program waits for layers, and not for the step\n"
			    "  --half SPEC            and 16 bits (the cast that the machine file has a curve of)\n"
			    "  --json                 print JSON\n"
			    "  --list                 print the models that are installed\n"
			    "  --machine FILE         a machine file\n"
			    "  --memory SIZE          --parallel: what a rank has: 40G\n"
			    "  --microbatches N       --parallel: of a step (8)\n"
			    "  --model MODEL          a model file, or an installed model's name\n"
			    "  --nodes NODES          8, or 4,8,12, or 4..1024: powers of two from 4 to 1024 (as\n"
			    "                         many as were measured)\n"
			    "  --output FILE          the best plan, for --gradcomp-schedule=plan:file=FILE\n"
			    "  --parallel             data, tensor and pipeline degrees of a transformer\n"
			    "  --ranks-per-node N     (as many as were measured)\n"
			    "  --schedules SPECS      these alone (wfbp/single/fixed/mgwfbp/omgs/auto)\n"
			    "  --state BYTES          --parallel: of the optimizer, a parameter (8)\n"
			    "  --svg FILE             a plot of step time against nodes\n"
			    "  --trace FILE           the best plan's simulated step as a Chrome trace\n\n"
			    "Exit status: 0 there is a plan, 1 there is none, 2 wrong usage.\n";

struct arguments {
	const char *model, *machine, *nodes, *ranks, *compressors, *collectives, *schedules, *dense, *half,
		*compute;
	const char *svg, *output, *trace;
	int list, parallel;
	plan_hybrid hybrid;
};

static int node_count(const char *text, size_t length, uint32_t *out)
{
	char number[16];
	int64_t n;

	if (length >= sizeof number)
		return -1;
	snprintf(number, sizeof number, "%.*s", (int)length, text);
	if (number_int(number, &n) != NUMBER_OK || n < 1 || n > PLAN_NODES_MOST)
		return -1;
	*out = (uint32_t)n;
	return 0;
}

/* First, last, and the powers of two between them. */
static int take_range(plan *p, const char *text, const char *dots)
{
	uint32_t first, last;

	if (node_count(text, (size_t)(dots - text), &first) || node_count(dots + 2, strlen(dots + 2), &last) ||
	    last <= first)
		return -1;
	p->nodes[p->nnodes++] = first;
	for (uint32_t n = 1; n < last; n *= 2)
		if (n > first)
			p->nodes[p->nnodes++] = n;
	p->nodes[p->nnodes++] = last;
	return 0;
}

/* "8", "4,8,12" or "4..1024". -1 when it is neither. */
static int take_nodes(plan *p, const char *text)
{
	const char *dots = strstr(text, "..");

	if (dots)
		return take_range(p, text, dots);
	for (;;) {
		size_t n = strcspn(text, ",");
		uint32_t *out = &p->nodes[p->nnodes];

		if (p->nnodes == PLAN_NODES || node_count(text, n, out) || (p->nnodes && *out <= out[-1]))
			return -1;
		p->nnodes++;
		if (!text[n])
			return 0;
		text += n + 1;
	}
}

/* -1 go on, else the exit status. */
static int parse(int argc, char **argv, struct arguments *a, plan *p)
{
	const command_option options[] = {
		{"--all", NULL, &p->all},
		{"--batch", &a->hybrid.batch, NULL},
		{"--collectives", &a->collectives, NULL},
		{"--compressors", &a->compressors, NULL},
		{"--compute", &a->compute, NULL},
		{"--dense", &a->dense, NULL},
		{"--each-layer", NULL, &p->each_layer},
		{"--half", &a->half, NULL},
		{"--json", NULL, &a->hybrid.json},
		{"--list", NULL, &a->list},
		{"--machine", &a->machine, NULL},
		{"--memory", &a->hybrid.memory, NULL},
		{"--microbatches", &a->hybrid.microbatches, NULL},
		{"--model", &a->model, NULL},
		{"--nodes", &a->nodes, NULL},
		{"--output", &a->output, NULL},
		{"--parallel", NULL, &a->parallel},
		{"--ranks-per-node", &a->ranks, NULL},
		{"--schedules", &a->schedules, NULL},
		{"--state", &a->hybrid.state, NULL},
		{"--svg", &a->svg, NULL},
		{"--trace", &a->trace, NULL},
		{0},
	};
	const plan_hybrid *h = &a->hybrid;
	int status = take_options(argc, argv, usage, options, NULL, 0);
	int64_t n;

	if (status >= 0)
		return status;
	if (a->list)
		return plan_list_models();
	if (!a->model || !a->machine)
		return usage_error(usage,
		                   "plan needs --model and --machine; --list shows the models that are installed");
	if (a->nodes && take_nodes(p, a->nodes))
		return usage_value(usage, "--nodes", a->nodes,
		                   "give 8, or 4,8,12 (rising), or 4..1024; 1 to 1048576");
	if (a->ranks) {
		if (number_int(a->ranks, &n) != NUMBER_OK || n < 1 || n > PLAN_RANKS_MOST)
			return usage_value(usage, "--ranks-per-node", a->ranks, "it can be 1 to 1024");
		p->ranks_per_node = (uint32_t)n;
	}
	if (a->parallel && (a->svg || a->output || a->trace || a->schedules || p->each_layer))
		return usage_error(usage, "--parallel goes with neither --svg, --output, --trace, --schedules nor "
		                          "--each-layer");
	if (!a->parallel && (h->batch || h->memory || h->microbatches || h->state))
		return usage_error(usage, "--batch, --memory, --microbatches and --state go with --parallel");
	if (p->nnodes > 1 && (a->output || a->trace || a->parallel))
		return usage_error(usage,
		                   "--output, --trace and --parallel are of one number of nodes; --nodes is '%s'",
		                   a->nodes);
	if (p->nnodes < 2 && a->svg)
		return usage_error(usage, "--svg needs --nodes with several numbers of nodes, such as 4..1024");
	return -1;
}

static int scale_compute(plan *p, const char *seconds)
{
	double all = 0, want;

	for (uint32_t i = 0; i < p->model->ntensors; i++)
		all += p->model->tensors[i].forward + p->model->tensors[i].backward;
	if (number_float(seconds, &want) != NUMBER_OK || !(want > 0 && want <= 3600))
		return usage_value(usage, "--compute", seconds, "give the seconds of both passes, at most 3600");
	if (!(all > 0))
		return usage_error(usage, "--compute: the passes of model %s take no time, which cannot be scaled",
		                   p->model->name);
	for (uint32_t i = 0; i < p->model->ntensors; i++) {
		p->model->tensors[i].forward *= want / all;
		p->model->tensors[i].backward *= want / all;
	}
	return -1;
}

/* One SPEC for comparison, which is also predicted. */
static gradcomp_status take_reference(plan *p, const char *asked, const char *usual, const char *option, plan_spec *out,
                                      gradcomp_error *err)
{
	const char *spec = asked ? asked : usual;
	plan_specs *one = calloc(1, sizeof *one);
	gradcomp_error why;
	gradcomp_status st = GRADCOMP_OK;

	if (!one) {
		err->status = GRADCOMP_ERR_NOMEM;
		snprintf(err->text, sizeof err->text, "no memory for a SPEC");
		return err->status;
	}
	if (plan_take_spec(GRADCOMP_KIND_COMPRESSOR, spec, option, one, &why)) {
		if (asked)
			*err = why;
		st = asked ? why.status : plan_skip_note(p, spec, why.text, err);
	} else {
		*out = one->spec[0];
		st = plan_take_spec(GRADCOMP_KIND_COMPRESSOR, spec, option, &p->compressors, err);
	}
	free(one);
	return st;
}

/* What was measured of gradients in 16 bits, fp16 rather than other types. */
static const char *usual_half(const gradcomp_machine *m)
{
	const char *found = NULL;

	for (uint32_t i = 0; i < m->ncurves; i++) {
		const char *of = m->curves[i].compressor;

		if (strncmp(of, "cast", 4) || (of[4] && of[4] != ':'))
			continue;
		if (strstr(of, "type=fp16"))
			return of;
		found = of;
	}
	return found ? found : "cast:type=fp16";
}

static gradcomp_status take_lists(plan *p, const struct arguments *a, gradcomp_error *err)
{
	/* Stages have what was asked for and nothing to be compared with. */
	int compared = !a->parallel || !a->compressors;
	gradcomp_status st = GRADCOMP_OK;

	if (compared)
		st = take_reference(p, a->dense, "none", "--dense", &p->dense, err);
	if (!st && compared)
		st = take_reference(p, a->half, usual_half(p->machine), "--half", &p->half, err);
	if (!st)
		st = a->compressors ? plan_take_specs(GRADCOMP_KIND_COMPRESSOR, a->compressors, "--compressors",
		                                      &p->compressors, err)
		                    : plan_take_curves(p, err);
	if (!st)
		st = plan_take_specs(GRADCOMP_KIND_COLLECTIVE, a->collectives, "--collectives", &p->collectives,
		                     err);
	if (!st)
		st = plan_take_schedules(a->schedules, &p->schedules, err);
	return st;
}

/* A plot of many numbers of nodes, or the best plan for one. */
static gradcomp_status write_files(const plan *p, const struct arguments *a, gradcomp_error *err)
{
	gradcomp_prediction out = {.struct_size = sizeof out};
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_question q;

	if (a->svg)
		return plan_svg(p, a->svg, err);
	q = plan_question(p, p->tables[0].best, p->nodes[0]);
	if (a->output)
		st = gradcomp_plan_write(a->output, p->model, p->machine, &q, err);
	if (!st && a->trace) {
		q.trace = a->trace;
		st = gradcomp_predict(p->model, p->machine, &q, &out, err);
	}
	return st;
}

static int predict(plan *p, const struct arguments *a)
{
	gradcomp_error err;
	int any = 0;

	if (plan_try(p, &err))
		return failed(&err);
	for (int n = 0; n < p->nnodes; n++)
		any |= p->tables[n].best != NULL;
	if (any && write_files(p, a, &err))
		return failed(&err);
	if (a->hybrid.json)
		plan_json(p, stdout);
	else
		plan_show(p);
	if (!any)
		fprintf(stderr, "gradcomp: no combination can be predicted; the reasons are above\n");
	return !any;
}

int cmd_plan(int argc, char **argv)
{
	static plan p;
	struct arguments a = {.model = NULL};
	gradcomp_error err;
	int status = parse(argc, argv, &a, &p);

	if (status >= 0)
		return status;
	if (plan_model(a.model, &p.model, &err) || gradcomp_machine_read(a.machine, &p.machine, &err)) {
		status = failed(&err);
		goto done;
	}
	if (!p.nnodes)
		p.nodes[p.nnodes++] = p.machine->nodes;
	if (!p.ranks_per_node)
		p.ranks_per_node = p.machine->ranks_per_node;
	if (a.compute && (status = scale_compute(&p, a.compute)) >= 0)
		goto done;
	if (take_lists(&p, &a, &err)) {
		status = failed(&err);
		goto done;
	}
	status = a.parallel ? plan_parallel(&p, &a.hybrid, usage) : predict(&p, &a);
done:
	plan_free(&p);
	return status;
}
