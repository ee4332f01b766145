/* A SPANK plugin whose hook named in its argument fails: what Slurm then does is
 * what spank/ is built around (see faults.t). */
#include <slurm/spank.h>
#include <string.h>

SPANK_PLUGIN(hooks, 1)

#define HOOK(name) \
	int slurm_spank_##name(spank_t sp, int ac, char **av) \
	{ \
		int remote = spank_context() == S_CTX_REMOTE || spank_context() == S_CTX_JOB_SCRIPT; \
		(void)sp; \
		return remote && ac == 1 && !strcmp(av[0], #name) ? -1 : 0; \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(user_init)
HOOK(task_post_fork)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(task_exit)
HOOK(exit)
