/* Has what Slurm calls. One file a context: local_context.c is srun, sbatch and salloc, step.c is slurmstepd, prolog.c
 * prolog and epilog. In slurmd itself the plugin does nothing. */
/* The build hides all that is not exported here. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>

#include "spank/prolog.h"
#include "spank/local_context.h"
#include "spank/step.h"

/* cppcheck-suppress unknownMacro */
SPANK_PLUGIN(gradcomp, 1)

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		return local_init(sp, ac, av);
	case S_CTX_REMOTE:
		return step_init(sp, ac, av);
	default:
		return 0;
	}
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		return local_options_end();
	case S_CTX_REMOTE:
		return step_options_end(sp);
	default:
		return 0;
	}
}

int slurm_spank_local_user_init(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	return local_launch(sp);
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	return step_user_init(sp);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	return step_task_init(sp);
}

int slurm_spank_task_post_fork(spank_t sp, int ac, char **av)
{
	(void)sp, (void)ac, (void)av;
	return step_task_post_fork();
}

int slurm_spank_job_prolog(spank_t sp, int ac, char **av)
{
	return prolog_job_begin(sp, ac, av);
}

int slurm_spank_job_epilog(spank_t sp, int ac, char **av)
{
	return prolog_job_end(sp, ac, av);
}

int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void)sp, (void)ac, (void)av;
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		local_exit();
		break;
	case S_CTX_REMOTE:
		step_exit();
		break;
	default:
		break;
	}
	return 0;
}
