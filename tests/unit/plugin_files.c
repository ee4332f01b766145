/* A plugin that is another file on one rank: the ranks do not begin together, and hear which file of which host. */
#include "job/job.h"
#include "plugin/registry.h"

#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"

#include <sys/stat.h>

enum { P = 3, DIFFERS = 2 };
static char folder[256];

static int sh(const char *command, const char *from, const char *to)
{
	char text[3 * PROCESS_TEXT];
	snprintf(text, sizeof text, "umask 022; from='%s' to='%s'; %s", from, to, command);
	return system(text);
}

typedef struct seen {
	int status;
	gradcomp_error err;
} seen;

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	const uint64_t dims[1] = {500};
	const gradcomp_tensor_desc desc = {.dims = dims, .ndim = 1};
	const gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk"};
	const plugin *loaded;
	gradcomp_reducer *r;
	seen *s = room;
	if (rank != DIFFERS)
		s->status = registry_open(job->config, GRADCOMP_KIND_COMPRESSOR, "topk", &loaded, &s->err);
	pthread_barrier_wait(&board->barrier);
	if (rank == DIFFERS) /* an upgrade does it so: a file with a byte more takes the name */
		s->status = sh("cp $to/topk.so $to/new && printf x >>$to/new && mv $to/new $to/topk.so", "", folder);
	if (!s->status)
		s->status = gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &r, &s->err);
	if (!s->status)
		gradcomp_reducer_free(r);
}

int main(void)
{
	char path[512];
	const char *settings[] = {path, "transport.timeout=20", NULL};
	const char *built = strchr(plugin_path_setting(), '=') + 1;
	process_board *b;
	int heard = 0;
	tmpdir_make("plugin_files");
	snprintf(folder, sizeof folder, "%s/compressors", tmpdir);
	if (sh("mkdir $to/compressors $to/collectives && cp $from/compressors/topk.so $from/compressors/none.so $to/compressors && "
	       "cp $from/collectives/ring.so $to/collectives",
	       built, tmpdir))
		return 2;
	snprintf(path, sizeof path, "gradcomp.plugin_path=%s", tmpdir);
	b = run_processes(P, settings, body, sizeof(seen));
	for (int p = 0; b && p < P; p++) {
		const seen *s = process_room(b, p);
		const char *first = strstr(s->err.text, "rank 2 on "), *second = strstr(s->err.text, ", rank 0 on ");

		if (s->status == GRADCOMP_ERR_MISMATCH && first && second &&
		    strstr(first, " has the plugins topk ") < second && strstr(second, " has topk ") &&
		    strstr(s->err.text, "all nodes must have the same files"))
			heard++;
		else
			printf("# rank %d: %d %s\n", p, s->status, s->err.text);
	}
	is_int(heard, P, "all ranks hear which");
	if (b)
		end_processes(b);
	return done_testing();
}
