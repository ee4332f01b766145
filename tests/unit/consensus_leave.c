/* Ranks that cannot begin together end at once: each has heard why, and none blames another for
 * having gone. */
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

enum { P = 4, ROUNDS = 8 };

static const struct {
	const char *name, *compressor; /* rank 2's; the others have "none" */
	uint32_t tensors;              /* rank 2's; the others have 2 */
	const char *says;
} cases[] = {
	{"another SPEC", "topk", 2, "rank 2 on "},
	{"another model", "none", 1, "rank 2 on "},
	{"no such plugin", "nope", 2, "compressor 'nope' is not installed"},
};
static size_t current;

typedef struct seen {
	gradcomp_error err;
} seen;

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	const uint64_t dims[1] = {500};
	const gradcomp_tensor_desc desc[2] = {{.dims = dims, .ndim = 1}, {.dims = dims, .ndim = 1}};
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = rank == 2 ? cases[current].compressor : "none"};
	seen *s = room;
	gradcomp_reducer *r;
	(void)board;
	if (gradcomp_reducer_create(gradcomp_job_world(job), desc, rank == 2 ? cases[current].tensors : 2, &o, &r,
	                            &s->err))
		_exit(0); /* without leaving, as a program that fails does */
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", NULL};
	for (current = 0; current < sizeof cases / sizeof cases[0]; current++) {
		int heard = 0;

		for (int round = 0; round < ROUNDS; round++) {
			process_board *b = run_processes(P, settings, body, sizeof(seen));

			for (int p = 0; b && p < P; p++) {
				const seen *s = process_room(b, p);

				if (strstr(s->err.text, cases[current].says) && !strstr(s->err.text, "died"))
					heard++;
				else
					printf("# %s: rank %d: %s\n", cases[current].name, p, s->err.text);
			}
			if (b)
				end_processes(b);
		}
		is_int(heard, P * ROUNDS, "%s: all ranks hear of it", cases[current].name);
	}
	return done_testing();
}
