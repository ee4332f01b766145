#include "spank/local_context.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/arguments.h"
#include "spank/stage_rendezvous.h"
#include "spank/options.h"
#include "spank/exec_helper.h"
#include "spank/spank_log.h"

#define CHECK_TIMEOUT 20 /* s */
#define WHY_BYTES 512
#define COMPONENTS_MAX 128 /* Slurm has as many (MAX_HET_JOB_COMPS) */

/* Slurm parses the options of a heterogeneous command, and calls local_options_end(), once for
 * each component, in one process. */
static struct {
	arguments args;
	options now;   /* those of the component being parsed */
	options *sets; /* those of the components before it */
	int nsets;
	bool mpi_given; /* the user's environment says which MPI */
	char *checked;  /* text of the last set that passed */
} local;

static void show(void *ctx, const char *line, bool passing)
{
	int *lines = ctx;
	(void)passing;
	++*lines;
	log_error("%s", line);
}

/* Runs the gradcomp command as the user, in the user's environment. */
static int command(char *const *argv, bool show_output)
{
	static exec_helper r;
	char why[WHY_BYTES];
	int lines = 0;
	r = (exec_helper){
		.argv = argv, .timeout = CHECK_TIMEOUT, .show_output = show_output, .line = show, .ctx = &lines};
	if (local.args.conf[0])
		setenv("GRADCOMP_CONF", local.args.conf, 0);
	r.env = environ; /* moved by setenv() */
	int status = exec_helper_run(&r, why, sizeof why);
	if (status < 0)
		log_error("%s; helper=FILE in plugstack.conf says where the gradcomp command is", why);
	else if (status > 0 && lines == 0)
		log_error("%s %s ended with status %d and no reason", argv[0], argv[1], status);
	return status;
}

static void help(const char *about)
{
	char *argv[] = {local.args.helper, "help-option", (char *)about, NULL};
	exit(command(argv, true) == 0 ? 0 : 1);
}

static int on_option(int which, const char *value, int remote)
{
	char why[WHY_BYTES];
	(void)remote;
	if (local.args.error[0]) {
		log_error("%s", local.args.error);
		exit(1);
	}
	if (options_set(&local.now, which, value, why, sizeof why) < 0) {
		log_error("%s", why);
		exit(1);
	}
	if ((which == OPTION_COMPRESSOR || which == OPTION_STAGE) && !strcmp(value, "help"))
		help(which == OPTION_STAGE ? "stage" : NULL);
	return 0;
}

int local_init(spank_t sp, int ac, char **av)
{
	arguments_parse(&local.args, ac, av);
	local.mpi_given = getenv("SLURM_MPI_TYPE") != NULL;
	return options_register(sp, on_option);
}

static int check(const options *o)
{
	char *argv[3 + 2 * OPTION_COUNT] = {local.args.helper, "check"};
	int n = 2;
	for (int i = 0; i < OPTION_COUNT; i++) {
		if (!options_table[i].check || !options_value(o, i))
			continue;
		argv[n++] = (char *)options_table[i].check;
		argv[n++] = o->value[i];
	}
	if (n > 2 && !options_off(o) && command(argv, false) != 0)
		return -1;
	const char *spec = options_value(o, OPTION_STAGE);
	char *stage[] = {local.args.helper, "stage", "--check", "--", (char *)spec, NULL};
	return spec ? command(stage, false) : 0;
}

/* A collective, a report and the like do nothing in a step without a compressor. Given to
 * sbatch and salloc they may be for every later srun. */
static bool useless(const options *o)
{
	if (spank_context() != S_CTX_LOCAL || o->value[OPTION_COMPRESSOR] || getenv("GRADCOMP"))
		return false;
	int which = OPTION_COLLECTIVE;
	while (which < OPTION_STAGE && !options_value(o, which))
		which++;
	if (which == OPTION_STAGE)
		return false;
	log_error("%s does nothing without --gradcomp=SPEC; --gradcomp=none sends gradients uncompressed",
	          option_name(which));
	return true;
}

/* A plugin is not told what else srun was asked for. That is in its command line, also behind the name of the
 * program, where it is not srun's: then a line of advice is missing, no more. */
static const char *command_line(const char **end)
{
	static char line[65536];
	FILE *f = fopen("/proc/self/cmdline", "r");
	*end = line + (f ? fread(line, 1, sizeof line - 1, f) : 0);
	if (f)
		fclose(f);
	return line;
}

/* Without --kill-on-bad-exit slurm.conf decides. */
static void advise_shrink(const options *o)
{
	const char *end, *kill = getenv("SLURM_KILL_BAD_EXIT");
	bool keeps = getenv("SLURM_NO_KILL"), kills = kill && strcmp(kill, "0");
	if (spank_context() != S_CTX_LOCAL || !o->value[OPTION_ON_FAILURE] ||
	    strcmp(o->value[OPTION_ON_FAILURE], "shrink"))
		return;
	for (const char *arg = command_line(&end); arg < end; arg += strlen(arg) + 1) {
		if (!strcmp(arg, "-k") || !strncmp(arg, "--no-k", 6))
			keeps = strcmp(arg, "--no-kill=off") != 0;
		if (!strncmp(arg, "-K", 2))
			kills = strcmp(arg, "-K0") != 0;
		else if (!strncmp(arg, "--kill-on-bad", 13))
			kills = !strchr(arg, '=') || strcmp(strchr(arg, '='), "=0") != 0;
	}
	if (!keeps || kills)
		log_error(
			"--gradcomp-on-failure=shrink: srun itself ends the step with %s; --no-kill --kill-on-bad-exit=0 keeps it",
			keeps ? "a lost task" : "a lost node");
}

/* The program alone knows if ranks can do without PMIx: those of PyTorch meet in its store. A rank that cannot
 * fails at once and says the same, so this is no refusal. By now srun has set SLURM_MPI_TYPE to what it takes. An
 * option that sbatch was given may be meant for another srun. */
static void advise_pmix(spank_t sp)
{
	const char *type = getenv("SLURM_MPI_TYPE"), *end;
	bool given = local.mpi_given, typed = false;
	uint32_t tasks = 0;
	for (const char *arg = command_line(&end); arg < end; arg += strlen(arg) + 1) {
		given |= !strncmp(arg, "--mp", 4);
		typed |= !strcmp(arg, "--gradcomp") || !strncmp(arg, "--gradcomp=", 11);
	}
	if (!typed || given || !type || !strncmp(type, "pmix", 4) ||
	    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS || tasks < 2)
		return;
	log_info(
		"these tasks have no PMIx (MpiDefault=%s), by which ranks find each other unless torch.distributed brings them together: type srun "
		"--mpi=pmix, or --mpi=%s if that is meant",
		type, type);
}

static bool equal(const options *a, const options *b)
{
	for (int i = 0; i < OPTION_COUNT; i++)
		if (!a->value[i] != !b->value[i] || (a->value[i] && strcmp(a->value[i], b->value[i])))
			return false;
	return true;
}

/* Slurm would hand the last component's values to all: components that differ
 * get theirs through the environment, when it is known which is which. */
static int export_components(void)
{
	bool differ = false;
	for (int k = 1; k < local.nsets; k++)
		differ |= !equal(&local.sets[0], &local.sets[k]);
	if (!differ)
		return 0;
	if (spank_context() != S_CTX_LOCAL || getenv("SLURM_JOB_ID")) {
		log_error("the components of this job differ in their --gradcomp options, which Slurm cannot keep "
		          "apart here; give them all the same, or start each with its own srun");
		return -1;
	}
	char *text = options_join(local.sets, local.nsets);
	bool failed = !text || setenv(OPTIONS_COMPONENTS, text, 1) < 0;
	free(text);
	if (failed)
		log_error("out of memory");
	return failed ? -1 : 0;
}

int local_options_end(void)
{
	if (local.nsets == 0) {
		unsetenv(OPTIONS_COMPONENTS);
		stage_rendezvous_forget();
	}
	/* A component without options may follow one that has some. */
	options *sets = realloc(local.sets, (size_t)(local.nsets + 1) * sizeof *sets);
	if (sets)
		local.sets = sets;
	char *text = options_join(&local.now, 1);
	if (!sets || !text || local.nsets == COMPONENTS_MAX) {
		log_error("out of memory, or more than %d components", COMPONENTS_MAX);
		exit(1);
	}
	if (options_any(&local.now) && (!local.checked || strcmp(local.checked, text))) {
		if (useless(&local.now) || check(&local.now) != 0)
			exit(1);
		advise_shrink(&local.now);
		free(local.checked);
		local.checked = text;
		text = NULL;
	}
	free(text);
	if (spank_context() == S_CTX_LOCAL && options_any(&local.now))
		setenv(OPTIONS_PLUGIN, GRADCOMP_VERSION_STRING, 1);
	local.sets[local.nsets++] = local.now;
	memset(&local.now, 0, sizeof local.now);
	if (export_components() < 0)
		exit(1);
	return 0;
}

/* After the allocation, before the launch. Components of a heterogeneous step are
 * launched by threads of their own, and each stages for itself. */
int local_launch(spank_t sp)
{
	static bool said;
	const char *spec = NULL;
	bool ranks = false;
	if (spank_context() != S_CTX_LOCAL)
		return 0;
	for (int k = 0; k < local.nsets; k++) {
		spec = spec ? spec : options_value(&local.sets[k], OPTION_STAGE);
		ranks |= options_value(&local.sets[k], OPTION_COMPRESSOR) != NULL;
	}
	if (ranks)
		advise_pmix(sp);
	if (!spec)
		return 0;
	if (local.nsets == 1) {
		stage_rendezvous_open(sp, &local.args, spec, show);
	} else if (!said) {
		said = true;
		log_error(
			"the components of a heterogeneous step do not stage together: each node reads all of the source");
	}
	return 0;
}

void local_exit(void)
{
	stage_rendezvous_close();
	options_clear(&local.now);
	while (local.nsets > 0)
		options_clear(&local.sets[--local.nsets]);
	free(local.sets);
	free(local.checked);
	memset(&local, 0, sizeof local);
}
