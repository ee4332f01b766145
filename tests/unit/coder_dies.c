/* A rank that dies with calls of a coder in flight: every request of the others fails and names it, as do
 * later ones; and a coder in the report and on the timeline of a job that ends well. */
#include <stdbool.h>

#include "gradcomp/coder.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"

enum { P = 3, DIES = 1, GOOD = 3, FLIGHT = 6, N = 5000 };

typedef struct seen {
	int good, failed, named, later, checked;
	gradcomp_error err;
} seen;

static bool named(gradcomp_status st, const gradcomp_error *err)
{
	return st == GRADCOMP_ERR_PEER && strstr(err->text, "rank 1 on ") != NULL;
}

static void dies(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float in[FLIGHT][P * N], out[FLIGHT][P * N];
	const uint64_t counts[P] = {N, N - 3, N + 3};
	gradcomp_coder_request *q[FLIGHT];
	gradcomp_coder *k;
	seen *s = room;
	(void)board;
	if (gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4", NULL, &k, &s->err))
		return;
	for (int i = 0; i < GOOD; i++)
		s->good += !gradcomp_coder_reduce_scatter(k, in[0], out[0], counts, GRADCOMP_F32, 1, 0, &s->err);
	s->checked = !gradcomp_job_check(job, &s->err);
	gradcomp_barrier(gradcomp_job_world(job), &s->err); /* the others have theirs, too */
	for (int i = 0; i < FLIGHT; i++) {
		gradcomp_status st = rank == DIES && i == FLIGHT / 2 ? raise(SIGKILL)
		                     : i % 2 ? gradcomp_coder_all_gather_start(k, in[i], out[i], counts, GRADCOMP_BF16,
		                                                               &q[i], &s->err)
		                             : gradcomp_coder_reduce_scatter_start(k, in[i], out[i], counts,
		                                                                   GRADCOMP_F32, 1, 0, &q[i], &s->err);
		if (st)
			s->named += named(st, &s->err);
	}
	for (int i = 0; i < FLIGHT; i++) {
		gradcomp_status st = q[i] ? gradcomp_coder_wait(q[i], &s->err) : GRADCOMP_OK;
		s->failed += st || !q[i];
		s->named += st && named(st, &s->err);
	}
	gradcomp_status st = gradcomp_coder_all_gather(k, in[0], out[0], counts, GRADCOMP_F32, &s->err);
	s->later = named(st, &s->err);
	st = gradcomp_job_check(job, &s->err);
	s->checked += named(st, &s->err);
	gradcomp_coder_free(k);
}

static void ends_well(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float in[P * N], out[P * N];
	const uint64_t counts[P] = {N, N - 3, N + 3};
	const gradcomp_coder_options o = {.struct_size = sizeof o, .name = "weights \"1\""};
	gradcomp_coder *k;
	seen *s = room;
	(void)rank, (void)board;
	if (gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4", &o, &k, &s->err))
		return;
	for (int i = 0; i < GOOD; i++) {
		s->good += !gradcomp_coder_reduce_scatter(k, in, out, counts, GRADCOMP_F32, 1, 4, &s->err);
		s->good += !gradcomp_coder_all_gather(k, in, out, counts, GRADCOMP_F32, &s->err);
	}
	gradcomp_coder_free(k);
}

static const char check[] =
	"import json, sys\n"
	"def expect(so, *what):\n"
	"    if not so: print(*what)\n"
	"r = json.load(open(sys.argv[1]))\n"
	"expect(r['reducers'] == [] and len(r['coders']) == 1, r['reducers'])\n"
	"c = r['coders'][0]\n"
	"expect(c['name'] == 'weights \"1\"' and c['compressor'].startswith('block:bits=4,') and c['ranks'] == 3, "
	"c)\n"
	"expect((c['reduce_scatters'], c['all_gathers'], c['slots'], c['nonfinite']) == (3, 3, 1, 0), c)\n"
	"dense = 4 * 3 * (15000 - 5000 + 2 * 5000)\n"
	"expect(c['dense_bytes'] == dense and 0.12 < c['wire_bytes'] / dense < 0.16, c, dense)\n"
	"expect(c['residual_bytes'] == 60000 and c['exchange_s'] > 0 and 6 < c['ratio'] < 8, c)\n"
	"t = json.load(open(sys.argv[2]))['traceEvents']\n"
	"threads = {(e['pid'], e['tid']): e['args']['name'] for e in t if e['name'] == 'thread_name'}\n"
	"expect(sorted(set(threads.values())) in (['application, coder 1', 'exchange, coder 1'], ['application, "
	"coder 0', 'exchange, coder 0']), threads)\n"
	"for rank in range(3):\n"
	"    mine = [e for e in t if e['ph'] == 'X' and e['pid'] == rank]\n"
	"    calls = [e for e in mine if e['cat'] == 'exchange']\n"
	"    expect([e['name'] for e in calls] == ['reduce_scatter', 'all_gather'] * 3, rank, calls)\n"
	"    expect([e['args']['call'] for e in calls] == list(range(6)), rank, calls)\n"
	"    expect(all(e['args']['bytes'] > 0 and e['dur'] > 0 for e in calls), rank, calls)\n"
	"    expect([e['args'].get('slot') for e in calls] == [4, None] * 3, rank, calls)\n"
	"    expect([e['name'] for e in mine if e['cat'] == 'application'] == ['wait'] * 6, rank, mine)\n";

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=5", "transport.wait_timeout=20", NULL};
	char report[300], trace[300], command[3000];
	int good = 0, failed = 0, said = 0, later = 0, checked = 0;
	process_board *b = run_processes(P, settings, dies, sizeof(seen));
	if (!b) {
		skip("processes cannot be started", "the others fail, and name it");
		return done_testing();
	}
	for (int p = 0; p < P; p++) {
		const seen *s = process_room(b, p);
		if (p == DIES)
			continue;
		good += s->good;
		failed += s->failed;
		said += s->named;
		later += s->later;
		checked += s->checked;
		printf("# rank %d: %s\n", p, s->err.text);
	}
	is_int(good, (P - 1) * GOOD, "the calls before it died");
	ok(failed >= (P - 1) * (FLIGHT - FLIGHT / 2), "those it did not come to fail: %d", failed);
	is_int(said, failed, "each names it");
	is_int(later, P - 1, "and so do later ones");
	is_int(checked, 2 * (P - 1), "the job is well before, and asked afterwards it names the rank");
	ok(WIFSIGNALED(b->slot[DIES].status), "it was killed");
	end_processes(b);

	tmpdir_make("coder");
	snprintf(report, sizeof report, "gradcomp.report=%s/r.json", tmpdir);
	snprintf(trace, sizeof trace, "gradcomp.trace=%s/t.json", tmpdir);
	const char *told[] = {plugin_path_setting(), report, trace, NULL};
	b = run_processes(P, told, ends_well, sizeof(seen));
	good = 0;
	for (int p = 0; b && p < P; p++) {
		good += ((seen *)process_room(b, p))->good;
		ok(b->slot[p].left, "rank %d leaves: %s", p, b->slot[p].error.text);
	}
	is_int(good, 2 * P * GOOD, "calls of a job that ends well");
	char path[300];
	snprintf(path, sizeof path, "%s/check.py", tmpdir);
	FILE *f = fopen(path, "w");
	if (f) {
		fputs(check, f);
		fclose(f);
	}
	snprintf(command, sizeof command,
	         "out=$(python3 %s %s %s 2>&1); [ -z \"$out\" ] || { echo \"# $out\"; exit 1; }", path,
	         strchr(report, '=') + 1, strchr(trace, '=') + 1);
	ok(!system(command), "the report and the timeline have it");
	end_processes(b);
	return done_testing();
}
