/* The table of compressors and collectives, cell by cell: what is said to go together is
 * run, on 1 to 4 ranks and on two nodes, whose processors differ; what is not is refused, with what would do. */
#include "tests/support/plugin_pairs.h"

#include "tests/support/conservation.h"

#include "operators/operator_tables.h"

#include <stdatomic.h>

/* Each rank asks once: those of a job have the operators of different processors, as far as this one has them. */
const gradcomp_operators *operators_cpu(void)
{
	static const char *const names[] = {"portable", "avx2", "avx512"};
	static atomic_uint asked;
	const gradcomp_operators *op = NULL;
	while (!op)
		op = operators_cpu_variant(names[atomic_fetch_add(&asked, 1) % 3]);
	return op;
}

static const struct {
	const char *name;
	int P, nodes[MAX_RANKS];
} places[] = {
	{"one node", 1, {0}}, {"one node", 2, {0}},       {"one node", 3, {0}},
	{"one node", 4, {0}}, {"2 + 2", 4, {0, 0, 1, 1}}, {"3 + 1", 4, {0, 0, 0, 1}},
};

static void no_body(gradcomp_job *job, int rank, int P, void *arg)
{
	(void)job, (void)rank, (void)P, (void)arg;
}

/* The error names both, what is lacking, and all that would do and no other. */
static void refused(const config *c, const char *compressor, const char *collective, const gradcomp_error *said,
                    const char *const *settings)
{
	static const char before[] = "collectives that serve it: ";
	char text[200], list[900] = "";
	const char *const *all[1] = {settings};
	rank_arg joined[1];
	gradcomp_error other;
	const struct gradcomp_compressor_v1 *made;
	snprintf(text, sizeof text, "compressor '%.60s' needs a", compressor);
	const char *needs = strstr(said->text, text), *at = strstr(said->text, before);
	snprintf(text, sizeof text, "which collective '%.60s' does not have", collective);
	for (int k = 0; k < ncollectives; k++)
		if (!pair(c, compressor, collectives[k], &made, &other)) {
			size_t n = strlen(list);
			snprintf(list + n, sizeof list - n, "%s%.60s", n ? ", " : "", collectives[k]);
		}
	ok(said->status == GRADCOMP_ERR_UNSUPPORTED && needs && strstr(said->text, text) && at &&
	           !strcmp(at + strlen(before), *list ? list : "none is installed"),
	   "%s with %s is refused: %s", compressor, collective, said->text);
	run_ranks_with(1, all, joined, no_body, NULL);
	ok(joined[0].joined == said->status && strstr(joined[0].error.text, said->text),
	   "%s with %s: nor is there a job", compressor, collective);
}

int main(void)
{
	const char *usual[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	gradcomp_error err;
	config *c = pairs_find(usual);
	int work = 0, not = 0;
	model_seed();
	if (!c)
		return done_testing();
	for (int i = 0; i < ncompressors; i++)
		for (int k = 0; k < ncollectives; k++) {
			char with[2][100];
			const char *settings[] = {usual[0], usual[1], usual[2], with[0], with[1], NULL};
			const struct gradcomp_compressor_v1 *made;
			snprintf(with[0], sizeof with[0], "gradcomp.compressor=%.60s", compressors[i]);
			snprintf(with[1], sizeof with[1], "gradcomp.collective=%.60s", collectives[k]);
			if (pair(c, compressors[i], collectives[k], &made, &err)) {
				not ++;
				refused(c, compressors[i], collectives[k], &err, settings);
				continue;
			}
			work++;
			for (size_t l = 0; l < sizeof places / sizeof places[0]; l++) {
				char where[100];
				snprintf(where, sizeof where, " with %.60s, %s", collectives[k], places[l].name);
				ranks_on(places[l].nodes);
				run_spec_on(where, compressors[i], places[l].P, 5000, -1, settings, apart_of(made));
				ranks_on(NULL);
			}
		}
	config_free(c);
	ok(ncompressors > 0 && work > 0 && not > 0, "%d pairs work, %d do not", work, not );
	return done_testing();
}
