/* Machine, model and plan files: what is written reads back as it was, and what cannot be
 * read is not written. */
#include "cost/planning.h"
#include "schedule/plan_file.h"

#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include <math.h>
#include <sys/stat.h>

static char path[128];
static gradcomp_error e;

static void round_trips(void)
{
	char long_spec[400], other[160];
	compressor_curve curves[] = {{.compressor = (char[]){"powersgd:rank=4"},
	                              .encode = {1e-5, 1.0 / 3e9},
	                              .decode = {0, 1e-10},
	                              .gathered = 1e-9,
	                              .code = {1e-7, 1e-9}},
	                             {.compressor = long_spec}};
	collective_cost calls[] = {{.collective = (char[]){"ring"}, .primitive = 1, .cost = {1e-4, 1e-9}},
	                           {.collective = (char[]){"auto"}, .primitive = 1 << 10, .cost = {0, 1e-9}},
	                           {.collective = (char[]){"ring"}, .primitive = 4, .cost = {2e-4, 1.0 / 3e8}}};
	machine_file m = {.nodes = 4,
	                  .ranks_per_node = 1,
	                  .ncurves = 2,
	                  .ncalls = 3,
	                  .name = "a machine",
	                  .level = {{0, 0}, {3e-5, 8e-9}},
	                  .reduce = 1e-10,
	                  .memory = 2e-10,
	                  .beside_application = 0.5,
	                  .beside_exchange = 1,
	                  .slowed_by_exchange = 0.2,
	                  .slowed_by_compute = 1.5,
	                  .call = 2e-5,
	                  .spread = 0.03,
	                  .curves = curves,
	                  .calls = calls},
		     *back;
	uint64_t dims[] = {3, 4};
	model_tensor tensors[] = {
		{.name = (char[]){"#first weight;"}, .dims = dims, .ndim = 2, .forward = 0.1, .backward = 1.0 / 3},
		{.name = long_spec}};
	model_layer layers[] = {{.name = (char[]){"all"}, .ntensors = 2, .output = 5, .kept = {1, 2}, .reduces = 2}};
	model_file model = {.ntensors = 2,
	                    .batch = 7,
	                    .name = "a model",
	                    .io = 0.25,
	                    .exchanging = 0.375,
	                    .compressing = 1,
	                    .slower_beside_exchange = 1.25,
	                    .slower_beside_compute = 1,
	                    .tensors = tensors,
	                    .nlayers = 1,
	                    .layers = layers},
		   *again;
	uint32_t end[] = {1, 2}, position[] = {1, 0};
	plan_file plan = {.model = "a model",
	                  .hash = plan_hash(0, 2, dims),
	                  .tensors = 2,
	                  .parameters = 13,
	                  .compressor = long_spec,
	                  .collective = (char[]){"ring"},
	                  .plan = {.nbuckets = 2, .end = end, .position = position, .lag = 1, .predicted = 0.1}},
		  read;
	struct stat st;
	snprintf(long_spec, sizeof long_spec, "longest:a=%0350d", 7);
	is_int(machine_file_write(path, &m, &e), 0, "a machine is written");
	is_int(machine_file_read(path, &back, &e), 0, "and read");
	ok(back->nodes == 4 && back->level[1].b == 8e-9 && back->level[0].b == 0 && back->beside_application == 0.5 &&
	           !strcmp(back->name, m.name) && back->ncurves == 2 && back->ncalls == 3,
	   "as it was");
	ok(back->slowed_by_exchange == 0.2 && back->slowed_by_compute == 1.5 && back->spread == 0.03 &&
	           back->call == 2e-5,
	   "with what slows passes down, what a call costs, and how far it is off");
	ok(back->curves[0].encode.b == 1.0 / 3e9 && back->curves[0].code.a == 1e-7 && back->curves[0].gathered == 1e-9,
	   "to the bit");
	is_str(back->curves[1].compressor, long_spec, "with SPECs that are longer than a line");
	ok(!strcmp(back->calls[0].collective, "ring") && back->calls[1].primitive == 4 &&
	           back->calls[2].primitive == 1 << 10,
	   "calls by their collective");
	machine_file_free(back);
	machine_file_free(NULL);

	is_int(model_file_write(path, &model, &e), 0, "a model is written");
	is_int(model_file_read(path, &again, &e), 0, "and read");
	ok(again->ntensors == 2 && again->tensors[0].backward == 1.0 / 3 && again->tensors[0].dims[1] == 4 &&
	           again->tensors[1].ndim == 0 && again->batch == 7 && again->io == 0.25 &&
	           again->exchanging == 0.375 && again->compressing == 1 && again->slower_beside_exchange == 1.25 &&
	           again->slower_beside_compute == 1,
	   "as it was");
	is_str(again->tensors[0].name, "_first_weight_", "names without blanks, and none is a comment");
	is_int(strlen(again->tensors[1].name), 80, "and not without end");
	ok(again->nlayers == 1 && again->layers[0].reduces == 2, "layers too");
	model_file_free(again);
	model_file_free(NULL);

	is_int(plan_file_write(path, &plan, &e), 0, "a plan is written");
	is_int(plan_file_read(path, &read, &e), 0, "and read");
	ok(read.hash == plan.hash && read.plan.nbuckets == 2 && read.plan.end[1] == 2 && read.plan.position[0] == 1 &&
	           read.plan.lag == 1 && read.plan.predicted == 0.1 && !strcmp(read.compressor, long_spec),
	   "as it was");
	plan_file_clear(&read);
	ok(plan_hash(0, 2, dims) != plan_hash(0, 1, dims) &&
	           plan_hash(plan.hash, 1, dims) != plan_hash(plan.hash, 1, dims + 1),
	   "a hash of shapes");

	/* A file that cannot be read is not written. */
	m.memory = NAN;
	is_int(machine_file_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a machine with NaN");
	like(e.text, "machine 'a machine': [machine] memory is nan", "and why");
	m.memory = 1e-10;
	m.level[1].b = 0;
	is_int(machine_file_write(path, &m, &e), GRADCOMP_ERR_INVALID, "nodes without a network");
	m.level[1].b = 1e-9;
	curves[0].encode.b = -1;
	is_int(machine_file_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a compressor that is faster than time");
	curves[0].encode.b = 0;
	calls[1].primitive = 3;
	is_int(machine_file_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a call of two primitives");
	calls[1].primitive = 2;
	memset(m.name, 'x', sizeof m.name);
	is_int(machine_file_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a name without an end");
	tensors[0].forward = INFINITY;
	is_int(model_file_write(path, &model, &e), GRADCOMP_ERR_INVALID, "a pass that never ends");
	tensors[0].forward = 0;
	dims[0] = UINT64_MAX;
	is_int(model_file_write(path, &model, &e), GRADCOMP_ERR_RANGE, "more numbers than there are");
	position[0] = 0;
	is_int(plan_file_write(path, &plan, &e), GRADCOMP_ERR_INVALID, "a plan whose positions are none");
	is_int(plan_file_read(path, &read, &e), 0, "what was there stays");
	plan_file_clear(&read);
	dims[0] = 3;
	snprintf(other, sizeof other, "%s/no/such/folder", tmpdir);
	is_int(model_file_write(other, &model, &e), GRADCOMP_ERR_IO, "no folder to write to");
	is_int(model_file_read(other, &again, &e), GRADCOMP_ERR_NOTFOUND, "nor to read from");
	snprintf(other, sizeof other, "%s/fifo", tmpdir);
	mkfifo(other, 0600);
	is_int(model_file_read(other, &again, &e), GRADCOMP_ERR_INVALID, "a pipe is not waited for");
	is_int(model_file_read(tmpdir, &again, &e), GRADCOMP_ERR_INVALID, "a folder is no file");
	is_int(model_file_read("/dev/zero", &again, &e), GRADCOMP_ERR_INVALID, "nor a device");
	unlink(other);
	unlink(path);
	ok(!stat(tmpdir, &st) && st.st_nlink == 2 && rmdir(tmpdir) == 0, "nothing else is left in the folder");
}

int main(void)
{
	tmpdir_make("model");
	snprintf(path, sizeof path, "%s/file", tmpdir);
	round_trips();
	return done_testing();
}
