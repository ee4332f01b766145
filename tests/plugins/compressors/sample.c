/* In order: a parameter of every type, and a check across two of them. */
#define FIXTURE_NAME "sample"
#define FIXTURE_PARAMS sample_params
#define FIXTURE_CHECK sample_check
#include "gradcomp/compressor.h"

static const char *const sample_types[] = {"fp16", "bf16", NULL};
static const gradcomp_param sample_params[] = {
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 1, .max = 64, .help = "columns that are kept"},
	{.name = "density",
         .type = GRADCOMP_PARAM_FLOAT,
         .def = "0.01",
         .min = 0,
         .max = 1,
         .help = "share that is kept"},
	{.name = "warm", .type = GRADCOMP_PARAM_BOOL, .def = "yes", .help = "begin where the last step ended"},
	{.name = "block",
         .type = GRADCOMP_PARAM_SIZE,
         .def = "256K",
         .min = 4096,
         .max = 1 << 30,
         .help = "bytes of a \"block\""},
	{.name = "type",
         .type = GRADCOMP_PARAM_CHOICE,
         .def = "fp16",
         .choices = sample_types,
         .help = "type on the wire"},
	{.name = "layers", .type = GRADCOMP_PARAM_STRING, .def = "", .help = "names of layers, a/b/c"},
};

static gradcomp_status sample_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[0].i > 32 && values[1].f > 0.5)
		return host->fail(err, GRADCOMP_ERR_INVALID, "rank %d goes with a density of at most 0.5, not %g",
		                  (int)values[0].i, values[1].f);
	return GRADCOMP_OK;
}

#include "tests/plugins/fixture_compressor.h"
