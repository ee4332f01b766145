/* Machine, model and plan files: what is written reads back as it was, and what is wrong is
 * refused with file and line. */
#include "gradcomp/model.h"
#include "model/plan_file.h"

#include "../tap.h"
#include "tmpdir.h"

#include <math.h>
#include <sys/stat.h>

static char path[128];
static gradcomp_error e;

static void put(const char *text, size_t bytes)
{
	FILE *f = fopen(path, "w");

	if (!f || fwrite(text, 1, bytes, f) != bytes || fclose(f))
		printf("Bail out! %s cannot be written\n", path);
}

typedef enum kind { MACHINE, MODEL, PLAN } kind;

static gradcomp_status read_it(kind k)
{
	gradcomp_machine *machine;
	gradcomp_model *model;
	plan_file plan;
	gradcomp_status st;

	memset(&e, 0, sizeof e);
	switch (k) {
	case MACHINE:
		st = gradcomp_machine_read(path, &machine, &e);
		if (!st)
			gradcomp_machine_free(machine);
		return st;
	case MODEL:
		st = gradcomp_model_read(path, &model, &e);
		if (!st)
			gradcomp_model_free(model);
		return st;
	default:
		st = plan_file_read(path, &plan, &e);
		if (!st)
			plan_file_clear(&plan);
		return st;
	}
}

/* `good` with `from` replaced by `to` is refused in these words; `from` "" stands for the end. */
typedef struct bad {
	const char *from, *to, *words;
} bad;

static void all_refused(kind k, const char *name, const char *good, const bad *list, size_t n)
{
	put(good, strlen(good));
	if (!is_int(read_it(k), 0, "%s: a good one", name))
		printf("# %s\n", e.text);
	for (size_t i = 0; i < n; i++) {
		const char *at = *list[i].from ? strstr(good, list[i].from) : good + strlen(good);
		char text[4000], place[200];
		int refused;

		if (!at) {
			ok(0, "'%s' is not in the text", list[i].from);
			continue;
		}
		snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, list[i].to, at + strlen(list[i].from));
		put(text, strlen(text));
		refused = read_it(k) == GRADCOMP_ERR_INVALID;
		snprintf(place, sizeof place, "%s:", path);
		if (!ok(refused && !strncmp(e.text, place, strlen(place)) && strstr(e.text, list[i].words),
		        "%s: %.40s", name, *list[i].words ? list[i].words : list[i].to))
			printf("# %s\n# for: %s\n", e.text, list[i].to);
	}
}

static const char machine_text[] = "\xef\xbb\xbf; a comment\n"
				   "[machine]\n"
				   "name = four nodes\n"
				   "nodes = 4\n"
				   "ranks_per_node = 2 ; two\n"
				   "memory = 1e-10\n"
				   "reduce = 2e-10\n"
				   "[node]\n"
				   "message = 2e-6\n"
				   "byte = 1e-10\n"
				   "[network]\n"
				   "message = 3e-5\n"
				   "byte = 8.5e-9\n"
				   "[compressor 1]\n"
				   "spec = powersgd:rank=4,\n"
				   "more = min_ratio=2\n"
				   "encode = 1e-5 2e-10\n"
				   "decode = 1e-5 1e-10\n"
				   "[compressor 2]\n"
				   "spec = topk\n"
				   "encode = 0 2e-9\n"
				   "decode = 0 0\n"
				   "gathered = 1e-10\n"
				   "code = 1e-6 1e-10\n"
				   "[collective 1]\n"
				   "allreduce = 1e-4 2e-9\n"
				   "spec = ring:chunk=0\n"
				   "allgather = 2e-4 3e-9\n";

static void machine_bad(void)
{
	static const bad list[] = {
		{"nodes = 4", "nodes = 0", "must be a whole number, 1 to 1000000"},
		{"nodes = 4", "nodes = -4", "must be a whole number"},
		{"nodes = 4", "nodes = 4.5", "must be a whole number"},
		{"nodes = 4", "nodes = 4000000000", "must be a whole number"},
		{"nodes = 4\n", "", "there is no 'nodes' in section [machine]"},
		{"nodes = 4", "nodes = 4\nnodes = 5", ":5: nodes was given in line 4 already"},
		{"nodes = 4", "node = 4", "unknown key 'node' in section [machine] (did you mean 'nodes'?)"},
		{"nodes = 4", "nodes", "no comment, no [section] and no key = value"},
		{"nodes = 4", "nodes = four", "is 'four'"},
		{"name = four nodes", "name =", "1 to 63 printable characters"},
		{"name = four nodes", "name = a#b", "without ';' and '#'"},
		{"memory = 1e-10", "memory = -1e-10", ":6: memory is '-1e-10'"},
		{"memory = 1e-10", "memory = nan", "memory is 'nan'"},
		{"memory = 1e-10", "memory = inf", "memory is 'inf'"},
		{"memory = 1e-10", "memory = 1e-400", "memory is '1e-400'"},
		{"memory = 1e-10", "memory = 0", "seconds for a byte, 1e-14 to 0.01"},
		{"message = 2e-6", "message = 3600", ":9: message is '3600'; it must be seconds, 0 to 60"},
		{"byte = 8.5e-9", "byte = 1e-15", "byte is '1e-15'; it must be seconds for a byte, 1e-14"},
		{"byte = 8.5e-9", "byte = 3", "it must be seconds for a byte"},
		{"byte = 8.5e-9\n", "", ":11: this section [network] has no 'byte'"},
		{"[network]\nmessage = 3e-5\nbyte = 8.5e-9\n", "", "there is no 'message' in section [network]"},
		{"[network]", "[web]", "unknown section [web]; there are [machine], [node], [network], [compressor N]"},
		{"[network]", "[network", "is not a section; write [NAME]"},
		{"[compressor 2]", "[compressor 1]", "compressor 1 was given already"},
		{"[compressor 2]", "[compressor 3]", "compressor 3 comes where 2 would be right"},
		{"[compressor 2]", "[compressor]", "unknown section [compressor]"},
		{"[compressor 2]", "[compressor two]", "'two' is no number of a compressor"},
		{"[compressor 2]", "[compressor 2 3]", "unknown section [compressor 2 3]"},
		{"spec = topk", "spec = powersgd:rank=4,min_ratio=2", ":19: compressor 'powersgd:rank=4,min_ratio=2' has a section already"},
		{"spec = topk\n", "", ":19: this section [compressor] has no 'spec'"},
		{"spec = topk", "spec = ../topk", "spec: "},
		{"encode = 0 2e-9", "encode = 0", "write two numbers A B"},
		{"encode = 0 2e-9", "encode = 0 0 0", "write two numbers A B"},
		{"encode = 0 2e-9", "encode = -1 0", "the first number of encode is '-1'"},
		{"encode = 0 2e-9", "encode = 0 1", "the second number of encode is '1'"},
		{"encode = 0 2e-9", "encode = 0 nan", "the second number of encode is 'nan'"},
		{"encode = 0 2e-9\n", "", "this section [compressor] has no 'encode'"},
		{"encode = 0 2e-9", "encode = 0 2e-9\nmore = x", "'more' stands behind no SPEC"},
		{"gathered = 1e-10", "gathered = -1", "gathered is '-1'"},
		{"allreduce = 1e-4 2e-9", "allreduce = 1e-4 2e-9\nallreduce = 1 1", "allreduce was given already"},
		{"allreduce = 1e-4 2e-9", "allreduce = 1e-4", "write two numbers"},
		{"allreduce = 1e-4 2e-9", "reduce = 1e-4 2e-9", "unknown key 'reduce' in section [collective]"},
		{"spec = ring:chunk=0\n", "", ":25: this section [collective] has no 'spec'"},
		{"", "[collective 2]\nspec = ring:chunk=0\nallreduce = 1 1e-9\n", "has a section already"},
		{"", "  nodes = 5\n", "the line is indented"},
		{"", "[machine]\nnodes = 5\n", "was given in line 4 already"},
		{"; a comment", "nodes = 4", "stands before the first [section]"},
	};
	char text[8000];

	all_refused(MACHINE, "machine", machine_text, list, sizeof list / sizeof list[0]);
	snprintf(text, sizeof text, "%.*snodes = %0200d\n", 30, machine_text, 4);
	put(text, strlen(text));
	is_int(read_it(MACHINE), GRADCOMP_ERR_INVALID, "an overlong line");
	like(e.text, "the line is too long", "and why");
	snprintf(text, sizeof text, "%s[collective 2]\nspec = a:b=c\n", machine_text);
	for (int i = 0; i < 30; i++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "more = %0150d\n", 0);
	put(text, strlen(text));
	is_int(read_it(MACHINE), GRADCOMP_ERR_INVALID, "a SPEC without end");
	like(e.text, "the SPEC is longer than 4000 characters", "and why");
}

static const char model_text[] = "[model]\n"
				 "name = tiny\n"
				 "batch = 32\n"
				 "io = 1e-3\n"
				 "copy = 1e-4\n"
				 "update = 2e-4\n"
				 "tensors = 3\n"
				 "[tensors]\n"
				 "0 = conv1.weight 64x3x7x7 forward 1.2e-3 backward 2.4e-3\n"
				 "1 = scale scalar forward 0 backward 0\n"
				 "2 = none 0x5 forward 0 backward 1e-9\n"
				 "[layers]\n"
				 "0 = first tensors 0-1 output 100 kept 1 2 reduces 0\n"
				 "1 = second tensors 2-2 output 100 kept 1 2 reduces 4\n";

static void model_bad(void)
{
	static const bad list[] = {
		{"name = tiny\n", "", "there is no 'name' in section [model]"},
		{"batch = 32", "batch = -1", "batch is '-1'"},
		{"batch = 32", "batch = 99999999999999999999", "batch is '99999999999999999999'"},
		{"io = 1e-3", "io = -1e-3", ":4: io is '-1e-3'; it must be seconds, 0 to 3600"},
		{"io = 1e-3", "io = nan", "io is 'nan'"},
		{"io = 1e-3", "io = 1e9", "io is '1e9'"},
		{"io = 1e-3", "io = 3600", "a step of model 'tiny' takes 3600"},
		{"io = 1e-3", "speed = 1", "unknown key 'speed' in section [model]"},
		{"tensors = 3", "tensors = 4", "there are 3 tensors, but [model] says 4: is the file whole?"},
		{"1 = scale", "2 = scale", ":10: tensor 2 comes where 1 would be right"},
		{"1 = scale", "0 = scale", "tensor 0 was given already, or comes too late; the next is 1"},
		{"1 = scale", "-1 = scale", "'-1' is no number of a tensor"},
		{"1 = scale", "x = scale", "'x' is no number of a tensor"},
		{"1 = scale", "99999999999 = scale", "is no number of a tensor"},
		{"scale scalar", "scale", "is no tensor; write NAME DIMxDIM forward SECONDS backward SECONDS"},
		{"64x3x7x7", "64x-3x7x7", "'64x-3x7x7' is no shape"},
		{"64x3x7x7", "64xx7", "is no shape"},
		{"64x3x7x7", "64x", "is no shape"},
		{"64x3x7x7", "x64", "is no shape"},
		{"64x3x7x7", "1x1x1x1x1x1x1x1x1", "at most 8 dimensions"},
		{"64x3x7x7", "16777216x16777217", "has more than 2^48 parameters"},
		{"64x3x7x7", "9223372036854775807x9223372036854775807", "has more than 2^48 parameters"},
		{"64x3x7x7", "0x9223372036854775807", "has more than 2^48 parameters"},
		{"64x3x7x7", "99999999999999999999", "is no shape"},
		{"forward 1.2e-3", "forward -1", ":9: forward is '-1'"},
		{"forward 1.2e-3", "forward nan", "forward is 'nan'"},
		{"forward 1.2e-3", "forwards 1.2e-3", "is no tensor"},
		{"backward 2.4e-3", "backward 3601", "backward is '3601'"},
		{"backward 2.4e-3", "backward 2.4e-3 1", "is no tensor"},
		{"backward 2.4e-3", "backward 3599.999", "a step of model 'tiny' takes"},
		{"64x3x7x7 forward 1.2e-3 backward 2.4e-3\n1 = scale scalar", "0 forward 1 backward 1\n1 = scale 0",
	         "model 'tiny' has no parameters"},
		{"tensors 2-2", "tensors 1-2", "it must begin with 2"},
		{"tensors 2-2", "tensors 2-3", "the last tensor is 2"},
		{"1 = second tensors 2-2 output 100 kept 1 2 reduces 4\n", "", "tensors 2-2 are in none"},
		{"output 100", "output -1", "output is '-1'"},
		{"[layers]", "[layer]", "unknown section [layer]"},
		{"", "\x01", "there is a control character (0x01)"},
	};
	const char *names[] = {"[tensors]\n", "[model]\nname = x\n", ""};

	all_refused(MODEL, "model", model_text, list, sizeof list / sizeof list[0]);
	for (size_t i = 0; i < 3; i++) {
		put(names[i], strlen(names[i]));
		is_int(read_it(MODEL), GRADCOMP_ERR_INVALID, "model: %s", i == 2 ? "empty" : "nothing in it");
	}
	/* Cut anywhere, it is not taken for less than it was; but for what comes behind the tensors. */
	int taken = 0;
	for (size_t n = 0; n < strlen(model_text); n++) {
		put(model_text, n);
		taken += !read_it(MODEL) && n < (size_t)(strstr(model_text, "2 = none") - model_text);
	}
	is_int(taken, 0, "model: cut short");
}

static const char plan_text[] = "[plan]\n"
				"model = tiny\n"
				"hash = 0123456789abcdef\n"
				"tensors = 14\n"
				"parameters = 1000\n"
				"compressor = none\n"
				"collective = ring:chunk=0\n"
				"lag = 0\n"
				"predicted = 0.25\n"
				"[buckets]\n"
				"0 = 0-11 place 1\n"
				"1 = 12-13 place 0\n";

static void plan_bad(void)
{
	static const bad list[] = {
		{"hash = 0123456789abcdef\n", "", "there is no 'hash'"},
		{"0123456789abcdef", "0123456789abcde", "it must be 16 hexadecimal digits"},
		{"0123456789abcdef", "0123456789abcdeg", "it must be 16 hexadecimal digits"},
		{"lag = 0", "lag = 2", "lag is '2'; it must be a whole number, 0 to 1"},
		{"predicted = 0.25", "predicted = -1", "predicted is '-1'"},
		{"tensors = 14", "tensors = 15", "the last bucket ends before tensor 14, but there are 15"},
		{"tensors = 14", "tensors = 13", "bucket 1 ends before tensor 14"},
		{"tensors = 14", "tensors = 1", "a plan of 2 buckets for 1 tensors"},
		{"1 = 12-13", "2 = 12-13", "bucket 2 comes where 1 would be right"},
		{"1 = 12-13", "1 = 11-13", ":12: bucket 1 has tensors '11-13'; it must be 12-LAST"},
		{"1 = 12-13", "1 = 13-13", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12-11", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12--1", "it must be 12-LAST"},
		{"1 = 12-13", "1 = 12-99999999999", "it must be 12-LAST"},
		{"place 0", "place 1", "buckets 0 and 1 both have place 1"},
		{"place 0", "place 2", "bucket 1 has place 2 of 2: must be 0..1"},
		{"place 0", "place -1", "is no bucket; write FIRST-LAST place PLACE"},
		{"place 0", "place", "is no bucket"},
		{"[buckets]\n0 = 0-11 place 1\n1 = 12-13 place 0\n", "", "a plan of 0 buckets"},
		{"1 = 12-13 place 0\n", "", "the last bucket ends before tensor 12, but there are 14"},
		{"[buckets]", "[bucket]", "unknown section [bucket]; there are [plan], [buckets]"},
		{"model = tiny", "model = tiny\nmodel = tiny", "model was given in line 2 already"},
	};

	all_refused(PLAN, "plan", plan_text, list, sizeof list / sizeof list[0]);
}

static void round_trips(void)
{
	char long_spec[400], other[160];
	gradcomp_curve curves[] = {{.compressor = (char[]){"powersgd:rank=4"}, .encode = {1e-5, 1.0 / 3e9},
	                            .decode = {0, 1e-10}, .gathered = 1e-9, .code = {1e-7, 1e-9}},
	                           {.compressor = long_spec}};
	gradcomp_call_cost calls[] = {{.collective = (char[]){"ring"}, .primitive = 1, .cost = {1e-4, 1e-9}},
	                              {.collective = (char[]){"auto"}, .primitive = 1 << 10, .cost = {0, 1e-9}},
	                              {.collective = (char[]){"ring"}, .primitive = 4, .cost = {2e-4, 1.0 / 3e8}}};
	gradcomp_machine m = {.struct_size = sizeof m, .nodes = 4, .ranks_per_node = 1, .ncurves = 2, .ncalls = 3,
	                      .name = "a machine", .level = {{0, 0}, {3e-5, 8e-9}}, .reduce = 1e-10, .memory = 2e-10,
	                      .beside_application = 0.5, .beside_exchange = 1, .curves = curves, .calls = calls}, *back;
	uint64_t dims[] = {3, 4};
	gradcomp_model_tensor tensors[] = {{.name = (char[]){"first weight;"}, .dims = dims, .ndim = 2, .forward = 0.1, .backward = 1.0 / 3},
	                                   {.name = long_spec}};
	gradcomp_model_layer layers[] = {{.name = (char[]){"all"}, .ntensors = 2, .output = 5, .kept = {1, 2}, .reduces = 2}};
	gradcomp_model model = {.struct_size = sizeof model, .ntensors = 2, .batch = 7, .name = "a model", .io = 0.25,
	                        .tensors = tensors, .nlayers = 1, .layers = layers}, *again;
	uint32_t end[] = {1, 2}, place[] = {1, 0};
	plan_file plan = {.model = "a model", .hash = plan_hash(0, 2, dims), .tensors = 2, .parameters = 13,
	                  .compressor = long_spec, .collective = (char[]){"ring"},
	                  .plan = {.nbuckets = 2, .end = end, .place = place, .lag = 1, .predicted = 0.1}}, read;
	struct stat st;

	snprintf(long_spec, sizeof long_spec, "longest:a=%0350d", 7);
	is_int(gradcomp_machine_write(path, &m, &e), 0, "a machine is written");
	is_int(gradcomp_machine_read(path, &back, &e), 0, "and read");
	ok(back->nodes == 4 && back->level[1].b == 8e-9 && back->level[0].b == 0 && back->beside_application == 0.5 &&
	           !strcmp(back->name, m.name) && back->ncurves == 2 && back->ncalls == 3,
	   "as it was");
	ok(back->curves[0].encode.b == 1.0 / 3e9 && back->curves[0].code.a == 1e-7 && back->curves[0].gathered == 1e-9,
	   "to the bit");
	is_str(back->curves[1].compressor, long_spec, "with SPECs that are longer than a line");
	ok(!strcmp(back->calls[0].collective, "ring") && back->calls[1].primitive == 4 && back->calls[2].primitive == 1 << 10,
	   "calls by their collective");
	gradcomp_machine_free(back);
	gradcomp_machine_free(NULL);

	is_int(gradcomp_model_write(path, &model, &e), 0, "a model is written");
	is_int(gradcomp_model_read(path, &again, &e), 0, "and read");
	ok(again->ntensors == 2 && again->tensors[0].backward == 1.0 / 3 && again->tensors[0].dims[1] == 4 &&
	           again->tensors[1].ndim == 0 && again->batch == 7 && again->io == 0.25,
	   "as it was");
	is_str(again->tensors[0].name, "first_weight_", "names without blanks");
	is_int(strlen(again->tensors[1].name), 80, "and not without end");
	ok(again->nlayers == 1 && again->layers[0].reduces == 2, "layers too");
	gradcomp_model_free(again);
	gradcomp_model_free(NULL);

	is_int(plan_file_write(path, &plan, &e), 0, "a plan is written");
	is_int(plan_file_read(path, &read, &e), 0, "and read");
	ok(read.hash == plan.hash && read.plan.nbuckets == 2 && read.plan.end[1] == 2 && read.plan.place[0] == 1 &&
	           read.plan.lag == 1 && read.plan.predicted == 0.1 && !strcmp(read.compressor, long_spec),
	   "as it was");
	plan_file_clear(&read);
	ok(plan_hash(0, 2, dims) != plan_hash(0, 1, dims) && plan_hash(plan.hash, 1, dims) != plan_hash(plan.hash, 1, dims + 1),
	   "a hash of shapes");

	/* What cannot be read is not written. */
	m.memory = NAN;
	is_int(gradcomp_machine_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a machine with NaN");
	like(e.text, "machine 'a machine': [machine] memory is nan", "and why");
	m.memory = 1e-10;
	m.level[1].b = 0;
	is_int(gradcomp_machine_write(path, &m, &e), GRADCOMP_ERR_INVALID, "nodes without a network");
	m.level[1].b = 1e-9;
	curves[0].encode.b = -1;
	is_int(gradcomp_machine_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a compressor that is faster than time");
	curves[0].encode.b = 0;
	calls[1].primitive = 3;
	is_int(gradcomp_machine_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a call of two primitives");
	calls[1].primitive = 2;
	memset(m.name, 'x', sizeof m.name);
	is_int(gradcomp_machine_write(path, &m, &e), GRADCOMP_ERR_INVALID, "a name without an end");
	tensors[0].forward = INFINITY;
	is_int(gradcomp_model_write(path, &model, &e), GRADCOMP_ERR_INVALID, "a pass that never ends");
	tensors[0].forward = 0;
	dims[0] = UINT64_MAX;
	is_int(gradcomp_model_write(path, &model, &e), GRADCOMP_ERR_RANGE, "more numbers than there are");
	place[0] = 0;
	is_int(plan_file_write(path, &plan, &e), GRADCOMP_ERR_INVALID, "a plan whose places are none");
	is_int(plan_file_read(path, &read, &e), 0, "what was there stays");
	plan_file_clear(&read);
	dims[0] = 3;
	snprintf(other, sizeof other, "%s/no/such/folder", tmpdir);
	is_int(gradcomp_model_write(other, &model, &e), GRADCOMP_ERR_IO, "no folder to write to");
	is_int(gradcomp_model_read(other, &again, &e), GRADCOMP_ERR_NOTFOUND, "nor to read from");
	snprintf(other, sizeof other, "%s/fifo", tmpdir);
	mkfifo(other, 0600);
	is_int(gradcomp_model_read(other, &again, &e), GRADCOMP_ERR_INVALID, "a pipe is not waited for");
	is_int(gradcomp_model_read(tmpdir, &again, &e), GRADCOMP_ERR_INVALID, "a folder is no file");
	is_int(gradcomp_model_read("/dev/zero", &again, &e), GRADCOMP_ERR_INVALID, "nor a device");
	unlink(other);
	unlink(path);
	ok(!stat(tmpdir, &st) && st.st_nlink == 2 && rmdir(tmpdir) == 0, "nothing else is left in the folder");
}

static void binary(void)
{
	char text[sizeof machine_text];
	uint64_t state = 7;
	int taken = 0;

	for (int i = 0; i < 200; i++) {
		for (size_t k = 0; k < sizeof text; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			text[k] = (char)(state >> 56);
		}
		put(text, sizeof text);
		taken += !read_it((kind)(i % 3));
	}
	is_int(taken, 0, "noise is refused");
}

int main(void)
{
	tmpdir_make("model");
	snprintf(path, sizeof path, "%s/file", tmpdir);
	machine_bad();
	model_bad();
	plan_bad();
	binary();
	round_trips();
	return done_testing();
}
