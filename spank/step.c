#include "spank/step.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank/arguments.h"
#include "spank/prolog.h"
#include "spank/options.h"
#include "spank/spank_log.h"
#include "spank/stage_task.h"

#define WHY_BYTES 512

/* Numbers of the steps that are no srun. */
#define STEP_EXTERN 0xfffffffcu
#define STEP_BATCH 0xfffffffbu
#define STEP_INTERACTIVE 0xfffffffau

static struct {
	arguments args;
	options opt;
	char error[WHY_BYTES]; /* why options could not be taken; "" */
	bool failed;           /* the tasks must not start */
	bool staging;
	bool unseen;     /* there will be no epilog */
	char *job_nodes; /* SLURM_JOB_NODELIST, while that has the step's; "" when it was not set */
} step;

/* Called twice with each value before Slurm 24.05. */
static int on_option(int which, const char *value, int remote)
{
	(void)remote;
	if (options_set(&step.opt, which, value, step.error, sizeof step.error) < 0)
		return 0; /* reported in user_init, where the user sees it */
	return 0;
}

int step_init(spank_t sp, int ac, char **av)
{
	arguments_parse(&step.args, ac, av);
	if (options_register(sp, on_option) < 0)
		snprintf(step.error, sizeof step.error, "Slurm does not take the options of this plugin");
	return 0;
}

/* Options win over the environment, which is all that the tasks of a step without options
 * go by. */
static bool compresses(spank_t sp)
{
	char value[8];
	if (options_off(&step.opt))
		return false;
	if (options_any(&step.opt))
		return true;
	spank_err_t rc = spank_getenv(sp, "GRADCOMP", value, sizeof value);
	return rc == ESPANK_NOSPACE || (rc == ESPANK_SUCCESS && *value && strcmp(value, "off"));
}

/* A variable's value, the caller's to free; NULL when it is not set, or does not fit in memory. */
static char *value_of(spank_t sp, const char *variable)
{
	spank_err_t rc = ESPANK_NOSPACE;
	char *value = NULL;
	for (int n = 4096; n <= 1 << 22 && rc == ESPANK_NOSPACE; n *= 4) {
		free(value);
		value = malloc((size_t)n);
		rc = value ? spank_getenv(sp, variable, value, n) : ESPANK_ERROR;
	}
	if (rc == ESPANK_SUCCESS)
		return value;
	free(value);
	return NULL;
}

/* Slurm's PMIx servers number a job's nodes. The server that has a rank's data is asked by the
 * number of its node in the step (pmixp_dmdx.c, 22.05 to 25.11): in a step on some of the job's
 * nodes that is another node, which is asked in vain for half a minute. The servers read the
 * job's nodes from the step's environment, once, after the hook init_post_opt. Until the hook
 * user_init the step's nodes stand there, and both numbers are the same. */
static void number_nodes(spank_t sp)
{
	char *nodes = value_of(sp, "SLURM_STEP_NODELIST");
	char *all = value_of(sp, "SLURM_JOB_NODELIST");
	if (nodes && (!all || strcmp(nodes, all)) &&
	    spank_setenv(sp, "SLURM_JOB_NODELIST", nodes, 1) == ESPANK_SUCCESS) {
		step.job_nodes = all ? all : strdup("");
		all = NULL;
	}
	free(all);
	free(nodes);
}

static void restore_job_nodes(spank_t sp)
{
	if (!step.job_nodes)
		return;
	if (*step.job_nodes)
		spank_setenv(sp, "SLURM_JOB_NODELIST", step.job_nodes, 1);
	else
		spank_unsetenv(sp, "SLURM_JOB_NODELIST");
	free(step.job_nodes);
	step.job_nodes = NULL;
}

/* By default the PMIx servers of the nodes' slurmstepds connect directly and send each other
 * MUNGE credentials. A slurmstepd cannot check one while it has the user's id for a moment, as
 * it starts the tasks. A server that is refused then never tries again, and the ranks wait for
 * ever (Slurm 22.05: 5 in 100 jobs of four nodes). Over slurmd this cannot happen. A
 * slurmstepd of root's job never changes its id. */
int step_options_end(spank_t sp)
{
	uid_t uid;
	if (options_value(&step.opt, OPTION_STAGE) && !step.args.error[0])
		step.unseen = prolog_note_staging(sp, &step.args);
	if (!compresses(sp))
		return 0;
	number_nodes(sp);
	if (spank_get_item(sp, S_JOB_UID, &uid) == ESPANK_SUCCESS && uid != 0)
		spank_setenv(sp, "SLURM_PMIX_DIRECT_CONN", "false", 0);
	return 0;
}

/* Takes this component's options from srun's list of those of a heterogeneous step. The
 * components' jobs are numbered in order from the leader's, which is in the environment. */
static void take_components(spank_t sp)
{
	static char text[65536];
	char leader[32];
	uint32_t job;
	spank_err_t rc = spank_getenv(sp, OPTIONS_COMPONENTS, text, sizeof text);
	if (rc == ESPANK_ENV_NOEXIST)
		return;
	spank_unsetenv(sp, OPTIONS_COMPONENTS);
	if (rc == ESPANK_SUCCESS && spank_get_item(sp, S_JOB_ID, &job) == ESPANK_SUCCESS &&
	    spank_getenv(sp, "SLURM_JOB_ID", leader, sizeof leader) == ESPANK_SUCCESS)
		options_split(text, (int)(job - (uint32_t)strtoul(leader, NULL, 10)), &step.opt, step.error,
		              sizeof step.error);
	else
		snprintf(step.error, sizeof step.error, "the options of the job's components are too long");
}

static int set(spank_t sp, const char *name, const char *value)
{
	if (spank_setenv(sp, name, value, 1) == ESPANK_SUCCESS)
		return 0;
	snprintf(step.error, sizeof step.error, "cannot set %s in the environment", name);
	return -1;
}

/* A relative file is in the directory the tasks start in, which is ours by now. */
static int set_file(spank_t sp, int which, const char *variable, const char *file)
{
	char here[PATH_MAX], full[3 * PATH_MAX];
	size_t n = 0;
	if (*file == '/')
		return set(sp, variable, file);
	if (!getcwd(here, sizeof here)) {
		snprintf(step.error, sizeof step.error, "%s=%s: the working directory does not exist any more",
		         option_name(which), file);
		return -1;
	}
	/* In FILE "%j" is the job; in the name of the directory '%' is itself. */
	for (const char *p = strcmp(here, "/") ? here : ""; *p; p++) {
		full[n++] = *p;
		if (*p == '%')
			full[n++] = '%';
	}
	snprintf(full + n, sizeof full - n, "/%s", file);
	return set(sp, variable, full);
}

static int export_options(spank_t sp)
{
	char names[80] = "";
	if (options_off(&step.opt)) {
		for (int i = 0; i < OPTION_COUNT; i++)
			if (options_table[i].variable)
				spank_unsetenv(sp, options_table[i].variable);
		spank_unsetenv(sp, "GRADCOMP_OPTIONS");
		return 0;
	}
	for (int i = 0; i < OPTION_COUNT; i++) {
		const option_row *row = &options_table[i];
		const char *value = options_value(&step.opt, i);
		if (!row->variable || !step.opt.value[i])
			continue;
		if (!value)
			spank_unsetenv(sp, row->variable);
		else if ((row->file ? set_file(sp, i, row->variable, value) : set(sp, row->variable, value)) < 0)
			return -1;
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? " " : "", row->word);
	}
	if (step.args.conf[0] && *names)
		spank_setenv(sp, "GRADCOMP_CONF", step.args.conf, 0);
	return *names ? set(sp, "GRADCOMP_OPTIONS", names) : 0;
}

static bool no(const char *value)
{
	return value &&
	       (!strcmp(value, "no") || !strcmp(value, "false") || !strcmp(value, "off") || !strcmp(value, "0"));
}

/* Returns true when the folder can be trusted: every Python of the tasks runs what is there, which must be as good
 * as the command that users run anyway. */
static bool trusted_folder(const char *path)
{
	struct stat folder, helper;
	return stat(path, &folder) == 0 && S_ISDIR(folder.st_mode) && !(folder.st_mode & (S_IWGRP | S_IWOTH)) &&
	       (folder.st_uid == 0 || (stat(step.args.helper, &helper) == 0 && helper.st_uid == folder.st_uid));
}

/* Python finds the package, whose entry point and sitecustomize attach models, before the user's own
 * PYTHONPATH. What stands there already is not put there twice; nothing is taken away, since a program that
 * imports the package may find it there. */
static void lead_python(spank_t sp)
{
	static char old[65536], path[PATH_MAX + sizeof old];
	const char *folder = step.args.python;
	size_t n = strlen(folder);
	if (!step.opt.value[OPTION_COMPRESSOR] || options_off(&step.opt) || no(step.opt.value[OPTION_ATTACH]))
		return;
	spank_err_t rc = spank_getenv(sp, "PYTHONPATH", old, sizeof old);
	if (rc == ESPANK_ENV_NOEXIST)
		*old = 0;
	else if (rc != ESPANK_SUCCESS)
		return;
	if (!strncmp(old, folder, n) && (!old[n] || old[n] == ':'))
		return;
	if (!trusted_folder(folder)) {
		log_info("%s is not there, or others than root could write to it: models of programs that do not call "
		         "attach() are left alone",
		         folder);
		return;
	}
	snprintf(path, sizeof path, "%s%s%s", folder, *old ? ":" : "", old);
	spank_setenv(sp, "PYTHONPATH", path, 1);
}

/* Answers what srun's plugin has left for this one; before anything that can fail. */
static void answer_srun(spank_t sp)
{
	char version[64], both[sizeof version + sizeof GRADCOMP_VERSION_STRING + 1];
	if (spank_getenv(sp, OPTIONS_PLUGIN, version, sizeof version) != ESPANK_SUCCESS)
		return;
	snprintf(both, sizeof both, "%s %s", version, GRADCOMP_VERSION_STRING);
	if (!strcmp(version, GRADCOMP_VERSION_STRING))
		spank_unsetenv(sp, OPTIONS_PLUGIN);
	else if (!strchr(version, ' '))
		spank_setenv(sp, OPTIONS_PLUGIN, both, 1);
}

int step_user_init(spank_t sp)
{
	char host[65] = "";
	uint32_t id, node;
	restore_job_nodes(sp);
	if (spank_get_item(sp, S_JOB_STEPID, &id) != ESPANK_SUCCESS || id == STEP_EXTERN)
		return 0;
	answer_srun(sp);
	take_components(sp);
	if (!options_any(&step.opt) && !step.error[0])
		return 0;
	if (!step.error[0] && step.args.error[0])
		snprintf(step.error, sizeof step.error, "%s", step.args.error);
	if (!step.error[0] && export_options(sp) == 0)
		lead_python(sp);
	if (!step.error[0] && options_value(&step.opt, OPTION_STAGE) && id != STEP_BATCH && id != STEP_INTERACTIVE)
		step.staging = stage_task_prepare(sp, step.error, sizeof step.error) == 0;
	if (step.unseen && spank_get_item(sp, S_JOB_NODEID, &node) == ESPANK_SUCCESS && node == 0) {
		gethostname(host, sizeof host - 1);
		log_info("%s: %s", host, PROLOG_UNSEEN);
	}
	if (step.error[0]) {
		log_info("error: %s", step.error);
		step.failed = true;
	}
	return 0;
}

int step_task_post_fork(void)
{
	if (step.staging)
		stage_task_forked();
	return 0;
}

/* In the task's process, as the user, before the program is executed. Ends the task here,
 * because a return value counts only when plugstack.conf says "required". */
int step_task_init(spank_t sp)
{
	if (step.staging &&
	    stage_task_run(sp, options_value(&step.opt, OPTION_STAGE), &step.args, step.error, sizeof step.error) < 0) {
		if (step.error[0])
			log_info("error: %s", step.error);
		step.failed = true;
	}
	if (step.failed) {
		log_flush();
		_exit(1);
	}
	return 0;
}

void step_exit(void)
{
	options_clear(&step.opt);
}
