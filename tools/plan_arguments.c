/* Reads what gradcomp plan was asked. */
#include <string.h>

#include "tools/commands.h"
#include "base/number.h"
#include "tools/plan.h"

const char plan_usage[] = "usage: gradcomp plan --model MODEL --machine FILE [OPTION]...\n"
			  "Predicts the step of every compressor, collective and schedule, the quickest first,\n"
			  "and says why. MODEL is a model file, the name of one that is installed, or the folder\n"
			  "of a Hugging Face model; FILE is\n"
			  "what gradcomp probe wrote. Separate the SPECs of a list with commas.\n\n"
			  "  --all                  print every combination\n"
			  "  --batch N              --parallel: samples of a step, of all ranks (the model's,\n"
			  "                         for each)\n"
			  "  --collectives SPECS    these alone (all that are installed)\n"
			  "  --compressors SPECS    these alone (all that the machine file has a curve of)\n"
			  "  --compute SECONDS      what both passes take, in place of the model's seconds\n"
			  "  --dense SPEC           what is compared with: fp32 (the default compressor)\n"
			  "  --each-layer           the program waits for layers, and not for the step\n"
			  "  --emit TRAINER         --parallel: the plan with the same degrees in all stages, as\n"
			  "                         arguments or configuration of torchtitan, megatron, deepspeed\n"
			  "  --half SPEC            and 16 bits (the dense one with half the bytes that the\n"
			  "                         machine file has a curve of)\n"
			  "  --json                 print JSON\n"
			  "  --kineto FILE          what torch.profiler's export_chrome_trace() wrote, for MODEL\n"
			  "  --links LINKS          10G, or 1G,10G,25G, or 1G..400G (doubling), in bits a second,\n"
			  "                         and /50us behind it: seconds a message (the machine's)\n"
			  "  --list                 print the models that are installed\n"
			  "  --machine FILE         a machine file\n"
			  "  --measured REPORT      a job's report: how fast its ranks compute and their slow\n"
			  "                         links, for --ranks\n"
			  "  --memory SIZE          --parallel: what a rank has: 40G\n"
			  "  --microbatches N       --parallel: of a step (8)\n"
			  "  --model MODEL          a model file, an installed model's name, or what Hugging\n"
			  "                         Face's programs save: config.json, *.safetensors, a folder\n"
			  "  --names FILE           --kineto: NAME 64x3x7x7 of each parameter, a line\n"
			  "  --need SHARE           the link that each compressor needs for 0.95 of the speed that\n"
			  "                         steps without exchanges have\n"
			  "  --no-read-ahead        batches are read between steps, not beside them\n"
			  "  --nodes NODES          8, or 4,8,12, or 4..1024: powers of two from 4 to 1024 (as\n"
			  "                         many as were measured)\n"
			  "  --output FILE          the best plan, for --gradcomp-schedule=plan:file=FILE\n"
			  "  --parallel             data, tensor and pipeline degrees of a transformer\n"
			  "  --ranks N:KEY=VALUE,.. N ranks that compute at another speed (speed=0.5), or whose\n"
			  "                         node has another link (link=100M): what the slowest costs, and\n"
			  "                         what less work gains; may be repeated\n"
			  "  --ranks-per-node N     (as many as were measured)\n"
			  "  --save FILE            write MODEL as a model file, and predict nothing\n"
			  "  --schedules SPECS      these alone (wfbp,single,fixed,mgwfbp,omgs,auto)\n"
			  "  --state BYTES          --parallel: of the optimizer, a parameter (8)\n"
			  "  --tokens N             of config.json and safetensors: a rank's in a step (4096)\n"
			  "  --trace FILE           the best plan's simulated step as a Chrome trace\n\n"
			  "Exit status: 0 there is a plan, 1 there is none, 2 wrong usage.\n";

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

int plan_parse(int argc, char **argv, plan_arguments *a, plan *p)
{
	const command_option options[] = {
		{"--all", NULL, &p->all},
		{"--batch", &a->hybrid.batch, NULL},
		{"--collectives", &a->collectives, NULL},
		{"--compressors", &a->compressors, NULL},
		{"--compute", &a->compute, NULL},
		{"--dense", &a->dense, NULL},
		{"--each-layer", NULL, &p->each_layer},
		{"--emit", &a->hybrid.emit, NULL},
		{"--half", &a->half, NULL},
		{"--json", NULL, &a->hybrid.json},
		{"--kineto", &a->kineto, NULL},
		{"--links", &a->links, NULL},
		{"--list", NULL, &a->list},
		{"--machine", &a->machine, NULL},
		{"--measured", &a->measured, NULL},
		{"--memory", &a->hybrid.memory, NULL},
		{"--microbatches", &a->hybrid.microbatches, NULL},
		{"--model", &a->model, NULL},
		{"--names", &a->names, NULL},
		{"--need", &a->need, NULL},
		{"--no-read-ahead", NULL, &p->no_read_ahead},
		{"--nodes", &a->nodes, NULL},
		{"--output", &a->output, NULL},
		{"--parallel", NULL, &a->parallel},
		{"--ranks", a->classes, &a->nclasses},
		{"--ranks-per-node", &a->ranks, NULL},
		{"--save", &a->save, NULL},
		{"--schedules", &a->schedules, NULL},
		{"--state", &a->hybrid.state, NULL},
		{"--tokens", &a->tokens, NULL},
		{"--trace", &a->trace, NULL},
		{0},
	};
	const plan_hybrid *h = &a->hybrid;
	int status = command_take_options(argc, argv, plan_usage, options, NULL, 0);
	bool links = false;
	int64_t n;
	if (status >= 0)
		return status;
	if (a->list)
		return plan_list_models();
	if (!(a->model || a->kineto) || !(a->machine || a->save))
		return command_usage_error(
			plan_usage, "plan needs --model and --machine; --list shows the models that are installed");
	if (a->model && a->kineto)
		return command_usage_error(plan_usage, "--kineto stands for --model; give one of them");
	if (a->names && !a->kineto)
		return command_usage_error(plan_usage, "--names goes with --kineto");
	if (a->nodes && take_nodes(p, a->nodes))
		return command_usage_value(plan_usage, "--nodes", a->nodes,
		                           "give 8, or 4,8,12 (rising), or 4..1024; 1 to 1048576");
	if (a->links && !plan_take_links(p, a->links))
		return command_usage_value(
			plan_usage, "--links", a->links,
			"give 10G, or 1G,10G,25G (rising), or 1G..400G, with /50us behind it or without; 1K "
			"to 800T bits a second, 0 to 60 s");
	if (a->need && (number_float(a->need, &p->need) != NUMBER_OK || !(p->need > 0 && p->need < 1)))
		return command_usage_value(
			plan_usage, "--need", a->need,
			"give a share of the speed without exchanges, as 0.95: more than 0, less than 1");
	if (a->ranks) {
		if (number_int(a->ranks, &n) != NUMBER_OK || n < 1 || n > PLAN_RANKS_MOST)
			return command_usage_value(plan_usage, "--ranks-per-node", a->ranks, "it can be 1 to 1024");
		p->ranks_per_node = (uint32_t)n;
	}
	a->ntokens = PLAN_TOKENS;
	if (a->tokens) {
		if (number_int(a->tokens, &n) != NUMBER_OK || n < 1 || n > PLAN_TOKENS_MOST)
			return command_usage_value(plan_usage, "--tokens", a->tokens, "it can be 1 to 16777216");
		if (!a->model || !plan_imports(a->model))
			return command_usage_error(
				plan_usage, "--tokens goes with a config.json, safetensors, or a folder of these");
		a->ntokens = (uint64_t)n;
	}
	for (int i = 0; i < a->nclasses; i++) {
		status = plan_take_class(p, a->classes[i], plan_usage);
		if (status >= 0)
			return status;
		links |= p->classes[i].link.bits > 0;
	}
	if (a->measured && a->nclasses)
		return command_usage_error(plan_usage, "--measured stands for --ranks; give one of them");
	if ((links || a->measured) && p->nlinks > 1)
		return command_usage_error(plan_usage,
		                           "--measured, and a link of --ranks, go with one of --links; --links is '%s'",
		                           a->links);
	const bool classes = a->nclasses || a->measured;
	if (a->parallel && (a->output || a->trace || a->schedules || p->each_layer || p->no_read_ahead || a->links ||
	                    a->need || classes))
		return command_usage_error(
			plan_usage,
			"--parallel goes with neither --output, --trace, --schedules, --links, --need, --ranks, "
			"--measured, --no-read-ahead nor --each-layer");
	if (a->need && (a->output || a->trace || p->all || classes))
		return command_usage_error(plan_usage,
		                           "--need goes with neither --output, --trace, --all, --ranks nor --measured");
	if (p->nnodes > 1 && p->nlinks > 1)
		return command_usage_error(
			plan_usage, "several --nodes or several --links, not both; --nodes is '%s', --links '%s'",
			a->nodes, a->links);
	if (p->nlinks > 1 && (a->output || a->trace))
		return command_usage_error(plan_usage, "--output and --trace are of one link; --links is '%s'",
		                           a->links);
	if (!a->parallel && (h->batch || h->emit || h->memory || h->microbatches || h->state))
		return command_usage_error(plan_usage,
		                           "--batch, --emit, --memory, --microbatches and --state go with --parallel");
	if (h->emit && h->json)
		return command_usage_error(plan_usage, "--emit and --json print different things");
	if (h->emit && (status = plan_emit_check(h->emit, plan_usage)) >= 0)
		return status;
	if (p->nnodes > 1 && (a->output || a->trace || a->parallel))
		return command_usage_error(
			plan_usage, "--output, --trace and --parallel are of one number of nodes; --nodes is '%s'",
			a->nodes);
	return -1;
}
