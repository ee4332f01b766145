/* cost_predict() on machines that are not there: answers that were worked out by hand,
 * what it says no to, and how long it takes for many nodes. */
#include "cost/planning.h"

#include "base/clock.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"

#include <math.h>
#include <sys/stat.h>

static gradcomp_error e;

/* 100 MB/s and a millisecond a message between nodes, ten times that inside. */
static machine_file machine = {.nodes = 4,
                               .ranks_per_node = 1,
                               .name = "m",
                               .level = {{1e-4, 1e-9}, {1e-3, 1e-8}},
                               .reduce = 1e-9,
                               .memory = 1e-10,
                               .beside_application = 1,
                               .beside_exchange = 1};
static uint64_t square[] = {1000, 1000};
static model_tensor tensors[] = {
	{.name = (char[]){"first"}, .dims = square, .ndim = 2, .forward = 0.01, .backward = 0.02},
	{.name = (char[]){"second"}, .dims = square, .ndim = 2, .forward = 0.03, .backward = 0.04}};
static model_file model = {.ntensors = 2, .name = "two", .update = 0.005, .tensors = tensors};

static cost_prediction ask(uint32_t nodes, uint32_t ranks, const char *compressor, const char *collective,
                           const char *schedule)
{
	const cost_question q = {.nodes = nodes,
	                         .ranks_per_node = ranks,
	                         .compressor = compressor,
	                         .collective = collective,
	                         .schedule = schedule};
	cost_prediction p = {0};
	memset(&e, 0, sizeof e);
	if (cost_predict(&model, &machine, &q, &p, &e)) {
		printf("# %s\n", e.text);
		p.step_s = -1;
	}
	return p;
}

static gradcomp_status refused(uint32_t nodes, uint32_t ranks, const char *compressor, const char *collective,
                               const char *schedule)
{
	const cost_question q = {.nodes = nodes,
	                         .ranks_per_node = ranks,
	                         .compressor = compressor,
	                         .collective = collective,
	                         .schedule = schedule};
	cost_prediction p = {0};
	return cost_predict(&model, &machine, &q, &p, &e);
}

static int about(double got, double want)
{
	if (fabs(got - want) <= 1e-9 * fabs(want))
		return 1;
	printf("#  got: %.12g\n# want: %.12g\n", got, want);
	return 0;
}

static const double passes = 0.01 + 0.03 + 0.02 + 0.04;

/* Rings of 4: 6 messages, each a quarter of the bytes; 3 quarters are added. */
static double ring(double bytes)
{
	return 6 * (1e-3 + bytes / 4 * 1e-8) + 3 * bytes / 4 * 1e-9;
}

static void dense(void)
{
	const double look = 4e6 * 1e-10;
	collective_cost call = {
		.collective = (char[]){"ring:chunk=0,small=8K,mode=assisted"}, .primitive = 1, .cost = {0.25, 1e-9}};
	cost_prediction p = ask(4, 1, NULL, "ring", "single"), q;
	ok(about(p.step_s, passes + 2 * look + ring(8e6) + 0.005), "dense, one bucket: the sum of all");
	ok(about(p.compute_s, passes + 0.005), "of that the program's own");
	ok(about(p.exposed_s, 2 * look + ring(8e6)), "and the rest is exposed");
	/* An exchange costs the host something: each, but not where its call was measured, and not alone. */
	machine.call = 0.125;
	ok(about(ask(4, 1, NULL, "ring", "single").exchange_s, p.exchange_s + 0.125),
	   "an exchange costs the host a call");
	ok(about(ask(4, 1, NULL, "ring", "wfbp").exchange_s, 2 * (ring(4e6) + 0.125)), "and two of them two");
	q = ask(1, 1, NULL, "ring", "wfbp");
	ok(about(q.step_s, (machine.call = 0, ask(1, 1, NULL, "ring", "wfbp").step_s)),
	   "but none where there is nobody else");
	ok(about(p.exchange_s, ring(8e6)) && about(p.encode_s, 2 * look) && p.decode_s == 0, "in tasks");
	ok(about(p.sent_bytes, 12e6) && about(p.node_bytes, 12e6), "a rank sends 6 quarters");
	is_int(p.buckets, 1, "one bucket");

	q = ask(4, 1, NULL, "ring", "wfbp");
	is_int(q.buckets, 2, "wfbp: two");
	/* The second one's gradient is there 0.02 before the first one's. */
	ok(about(q.step_s, passes - 0.02 + look + 2 * ring(4e6) + 0.005), "wfbp: the recurrence");
	ok(ask(4, 1, NULL, "ring", "fixed:bytes=1M").buckets == 2 &&
	           ask(4, 1, NULL, "ring", "fixed:bytes=8M").buckets == 1,
	   "buckets of a size");

	machine.calls = &call;
	machine.ncalls = 1;
	machine.call = 1;
	ok(about(ask(4, 1, NULL, "ring", "single").exchange_s, 0.25 + 8e6 * 1e-9),
	   "what was measured wins over the levels, and has the host's part in it");
	machine.call = 0;
	ok(about(ask(2, 1, NULL, "ring", "single").exchange_s, 2 * (1e-3 + 4e6 * 1e-8) + 4e6 * 1e-9),
	   "but not for other numbers of nodes");
	call.collective = (char[]){"ring"};
	ok(about(ask(4, 1, NULL, "ring", "single").exchange_s, 0.25 + 8e6 * 1e-9),
	   "by a SPEC that leaves out what has a default, too");
	ok(about(ask(4, 1, NULL, "ring:chunk=1M", "single").exchange_s, ring(8e6)), "but not for other values");
	call.collective = (char[]){"ring:chnk=0"};
	is_int(refused(4, 1, NULL, "ring", "single"), GRADCOMP_ERR_INVALID, "a misspelt parameter is refused");
	like(e.text, "machine 'm', collective 'ring:chnk=0':", "and named");
	call.collective = (char[]){"nonesuch"};
	ok(about(ask(4, 1, NULL, "ring", "single").exchange_s, ring(8e6)),
	   "a collective that is not installed is nobody's");
	machine.ncalls = 0;
	model.io = 3;
	ok(about(ask(4, 1, NULL, "ring", "single").step_s, 3), "reading takes longer than all the rest");
	model.io = 0;
	ok(about(ask(1, 1, NULL, "ring", "single").step_s, passes + 2 * look + 0.005),
	   "a rank alone exchanges nothing");
}

static void compressed(void)
{
	compressor_curve curves[] = {
		{.compressor = (char[]){"powersgd:rank=4,min_ratio=2,start_step=0,warm_start=yes,restart=0"},
	         .encode = {1e-3, 1e-8},
	         .decode = {2e-3, 2e-8}},
		{.compressor =
	                 (char[]){
				 "topk:density=0.01,warmup_steps=100,start_step=0,indices=raw,values=f32,layerwise=no"},
	         .encode = {1e-3, 1e-8},
	         .decode = {2e-3, 2e-8},
	         .gathered = 1e-8},
		{.compressor = (char[]){"block:bits=8,block=256,rounding=nearest,start_step=0"}, .code = {1e-3, 1e-9}}};
	cost_prediction p;
	double factor = 2 * 4 * 1000 * 4, payload, coded;
	machine.curves = curves;
	machine.ncurves = 3;
	/* Two matrices, factors of 4 columns: all P in one reduction with five marks, then all Q. */
	p = ask(4, 1, "powersgd", "ring", "single");
	ok(about(p.sent_bytes, 1.5 * (2 * factor + 20)), "powersgd: bytes of the factors");
	ok(about(p.exchange_s, ring(factor + 20) + ring(factor)), "two reductions");
	ok(about(p.encode_s, 1e-3 + 2e6 * 1e-8) && about(p.decode_s, 2e-3 + 2e6 * 2e-8), "by the machine's lines");
	ok(about(p.step_s, passes + p.exchange_s + p.encode_s + p.decode_s + 0.005), "one after another");

	/* 20,000 indices and values, of a known length; with a word in front, and whole words. */
	p = ask(4, 1, "topk", "ring", "single");
	payload = p.sent_bytes / 3 - 8;
	ok(payload >= 160000 && payload <= 160064, "topk: 8 bytes a number that is sent, and a header");
	ok(about(p.exchange_s, 3 * (1e-3 + (payload + 8) * 1e-8)), "payloads go around a ring");
	ok(fabs(p.decode_s - (2e-3 + 2e6 * 2e-8 + 3 * payload * 1e-8)) < 3 * 8e-8, "others' payloads are decoded");

	/* Codes: 1 byte and a step of 4 for 256 numbers. 3 blocks there, 3 back. */
	p = ask(4, 1, "block", "ring", "single");
	coded = 8e6 * (256 + 4) / 1024.0;
	ok(fabs(p.sent_bytes / (1.5 * coded) - 1) < 0.01, "block: coded bytes travel");
	ok(p.exchange_s > 6 * (1e-3 + coded / 4 * 1e-8) + 1e-3 + 2e6 / 4 * 14 * 1e-9 &&
	           p.exchange_s < 1.05 * (6 * (1e-3 + coded / 4 * 1e-8) + 1e-3 + 2e6 / 4 * 14 * 1e-9) + 0.01,
	   "and blocks are coded on the way");

	/* Two levels: half of each tensor is between nodes. */
	p = ask(4, 2, "topk", "hier", "single");
	ok(p.node_bytes > 2 * 3 * 80000 && p.node_bytes < 2 * 3 * 80100 + 1000,
	   "hier: shards of a node leave it, as much as a rank's");
	payload = p.node_bytes / 6 - 8;
	ok(fabs(p.decode_s - (2e-3 + 1e6 * 2e-8 + 3 * payload * 1e-8)) < 3 * 8e-8, "a rank works on its shard");
	ok(p.step_s < ask(4, 2, "topk", "ring", "single").step_s, "which is faster than a ring of all");
	curves[0].compressor = (char[]){"powersgd:rnak=4"};
	is_int(refused(4, 1, "powersgd", "ring", "single"), GRADCOMP_ERR_INVALID,
	       "a curve with a misspelt parameter is refused");
	like(e.text, "machine 'm', compressor 'powersgd:rnak=4':", "and named");
	machine.ncurves = 0;
	machine.curves = NULL;
}

/* Compression pays where bytes are dear, and not where they are not. */
static void honest(void)
{
	compressor_curve curves[] = {
		{.compressor = (char[]){"powersgd:rank=4,min_ratio=2,start_step=0,warm_start=yes,restart=0"},
	         .encode = {1e-5, 1e-9},
	         .decode = {1e-5, 5e-10}},
		{.compressor =
	                 (char[]){
				 "topk:density=0.01,warmup_steps=100,start_step=0,indices=raw,values=f32,layerwise=no"},
	         .encode = {1e-5, 2e-9},
	         .decode = {1e-5, 1e-9},
	         .gathered = 1e-9}};
	const machine_file was = machine;
	machine.curves = curves;
	machine.ncurves = 2;
	machine.reduce = 1e-11;
	machine.memory = 1e-11;
	machine.level[1] = (linear){2e-6, 1e-11};
	ok(ask(4, 1, NULL, "ring", "auto").step_s < ask(4, 1, "powersgd", "ring", "auto").step_s &&
	           ask(4, 1, NULL, "ring", "auto").step_s < ask(4, 1, "topk", "ring", "auto").step_s,
	   "at 100 GB/s dense is faster");
	machine.level[1] = (linear){3e-5, 8e-9};
	ok(ask(4, 1, "powersgd", "ring", "auto").step_s < ask(4, 1, NULL, "ring", "auto").step_s,
	   "at 1 Gbit/s low rank is");
	ok(ask(256, 1, "topk", "ring", "auto").step_s > ask(256, 1, NULL, "ring", "auto").step_s,
	   "top-k by an all-gather loses among many ranks");
	machine = was;
}

/* Passes that are slowed down, and how sure a prediction is. */
static void uncertain(void)
{
	const machine_file was = machine;
	cost_prediction p = ask(4, 1, NULL, "ring", "wfbp"), q;
	ok(p.least_s <= p.step_s && p.step_s <= p.most_s && p.least_s < p.most_s, "between %.4f and %.4f s", p.least_s,
	   p.most_s);
	machine.spread = COST_SPREAD;
	q = ask(4, 1, NULL, "ring", "wfbp");
	ok(q.least_s == p.least_s && q.most_s == p.most_s, "by a tenth, where the file does not say");
	machine.spread = 0.01;
	q = ask(4, 1, NULL, "ring", "wfbp");
	ok(q.most_s - q.least_s < (p.most_s - p.least_s) / 2 && q.step_s == p.step_s,
	   "by a hundredth: the same step, closer");
	/* Exchanges that the passes hide. */
	machine.level[1] = (linear){1e-6, 1e-11};
	p = ask(4, 1, NULL, "ring", "wfbp");
	/* A recorded job's backward pass, half of it beside exchanges that made it half as long again. */
	const double recorded[2] = {tensors[0].backward, tensors[1].backward};
	machine.slowed_by_exchange = 0.5;
	double by_itself = ask(4, 1, NULL, "ring", "wfbp").step_s;
	for (int i = 0; i < 2; i++)
		tensors[i].backward = recorded[i] * 1.2;
	model.exchanging = 0.5; /* 0.5 + 0.5 / 1.5 is 1 / 1.2 */
	ok(about(ask(4, 1, NULL, "ring", "wfbp").step_s, by_itself),
	   "what slowed a recorded job's passes is taken out once");
	machine.slowed_by_exchange = 0, machine.slowed_by_compute = 0.25;
	model.exchanging = 0, model.compressing = 1;
	for (int i = 0; i < 2; i++)
		tensors[i].backward = recorded[i] * 1.25;
	ok(about(ask(4, 1, NULL, "ring", "single").compute_s, passes + 0.005),
	   "and of a pass that was beside compressing all the time");
	/* The times that the job has found out itself go before what the machine says. */
	machine.slowed_by_compute = 7;
	model.slower_beside_compute = 1.25;
	ok(about(ask(4, 1, NULL, "ring", "single").compute_s, passes + 0.005),
	   "as that job has found out, whatever the machine says");
	machine.slowed_by_compute = model.compressing = model.slower_beside_compute = 0;
	for (int i = 0; i < 2; i++)
		tensors[i].backward = recorded[i];
	machine.slowed_by_exchange = 0.5;
	ok(ask(4, 1, NULL, "ring", "wfbp").step_s > p.step_s, "slower where passes lose speed beside an exchange");
	q = ask(4, 1, NULL, "ring", "wfbp");
	machine.slowed_by_exchange = 9;
	model.slower_beside_exchange = 1.5;
	ok(about(ask(4, 1, NULL, "ring", "wfbp").step_s, q.step_s), "and so beside exchanges");
	model.slower_beside_exchange = 1;
	ok(about(ask(4, 1, NULL, "ring", "wfbp").step_s, p.step_s), "where it has found that nothing is lost, too");
	model.slower_beside_exchange = 0;
	machine.slowed_by_exchange = 0.5;
	ok(about(ask(4, 1, NULL, "ring", "single").step_s,
	         (machine.slowed_by_exchange = 0, ask(4, 1, NULL, "ring", "single").step_s)),
	   "but not where nothing is beside them");
	machine = was;
}

static void many(void)
{
	double last = 0, start = clock_now();
	int grows = 1;
	for (uint32_t nodes = 4; nodes <= 16384; nodes *= 4) {
		double step = ask(nodes, 1, NULL, "ring", "auto").step_s;

		grows &= step > last;
		last = step;
	}
	ok(grows, "4 to 16384 nodes: a ring takes longer and longer");
	ok(about(ask(16384, 1, NULL, "ring", "single").exchange_s,
	         2 * 16383 * (1e-3 + 8e6 / 16384 * 1e-8) + 16383 * 8e6 / 16384 * 1e-9),
	   "16384 nodes: by the formula");
	ok(ask(16384, 8, NULL, "rhd", "auto").step_s < ask(16384, 8, NULL, "ring", "auto").step_s,
	   "131072 ranks: halving and doubling is faster than a ring");
	start = clock_now() - start;
	ok(start < 20, "in %.2f s", start);
	is_int(refused(1 << 20, 2, NULL, "ring", "single"), GRADCOMP_ERR_INVALID, "but not two million ranks");
}

static void schedules(void)
{
	static const char *const others[] = {"wfbp",   "single", "fixed",         "fixed:bytes=1M",
	                                     "mgwfbp", "omgs",   "mgwfbp:greedy", "omgs:greedy"};
	model_tensor many[40];
	uint64_t dims[40];
	const model_file was = model;
	char file[100], spec[120], trace[100], line[200];
	const cost_question ring = {
		.nodes = 4, .ranks_per_node = 1, .collective = "ring", .schedule = "auto", .trace = trace};
	cost_question q = ring;
	cost_prediction best, layers;
	int worse = 0, tasks = 0;
	FILE *f;
	for (int i = 0; i < 40; i++) {
		dims[i] = (uint64_t)(i % 3 ? 100 : 50000 * (1 + i % 5));
		many[i] = (model_tensor){.name = (char[]){"t"},
		                         .dims = &dims[i],
		                         .ndim = 1,
		                         .forward = 0.002,
		                         .backward = 0.001 * (i % 4)};
	}
	model.tensors = many;
	model.ntensors = 40;
	best = ask(4, 1, NULL, "ring", "auto");
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		worse += ask(4, 1, NULL, "ring", others[i]).step_s < best.step_s * (1 - 1e-9);
	is_int(worse, 0, "auto is not worse than wfbp, single, fixed, mgwfbp, omgs");
	ok(best.buckets > 1 && best.buckets < 40, "with %u buckets of 40 tensors", best.buckets);
	snprintf(file, sizeof file, "%s/plan", tmpdir);
	snprintf(trace, sizeof trace, "%s/trace", tmpdir);
	snprintf(spec, sizeof spec, "plan:file=%s", file);
	is_int(cost_plan_write(file, &model, &machine, &q, &e), 0, "its plan as a file");
	ok(about(ask(4, 1, NULL, "ring", spec).step_s, best.step_s), "is as fast");
	f = fopen(trace, "r");
	while (f && fgets(line, sizeof line, f))
		tasks += strstr(line, "\"ph\": \"X\"") != NULL;
	if (f)
		fclose(f);
	is_int(tasks, 40 * 2 + 1 + 5 * (int)best.buckets, "the timeline has every task once");
	q.each_layer = 1;
	q.trace = NULL;
	is_int(cost_predict(&model, &machine, &q, &layers, &e), 0, "a program that waits for layers");
	ok(layers.step_s <= best.step_s, "is not slower");
	dims[3]++;
	is_int(refused(4, 1, NULL, "ring", spec), GRADCOMP_ERR_MISMATCH, "the plan of another model");
	like(e.text, "is a plan of model 'two' with 40 tensors", "is refused");
	model = was;
}

static void bad(void)
{
	is_int(refused(4, 1, "powersgd", "ring", NULL), GRADCOMP_ERR_UNSUPPORTED, "a compressor that was not measured");
	like(e.text, "machine 'm' says nothing of compressor powersgd:rank=4", "is named");
	is_int(refused(0, 1, NULL, NULL, NULL), GRADCOMP_ERR_INVALID, "no nodes");
	is_int(refused(4, 0, NULL, NULL, NULL), GRADCOMP_ERR_INVALID, "no ranks");
	is_int(refused(4, 1, "nonesuch", NULL, NULL), GRADCOMP_ERR_NOTFOUND, "no such compressor");
	is_int(refused(4, 1, NULL, "nonesuch", NULL), GRADCOMP_ERR_NOTFOUND, "no such collective");
	is_int(refused(4, 1, NULL, NULL, "nonesuch"), GRADCOMP_ERR_NOTFOUND, "no such schedule");
	is_int(refused(4, 1, NULL, NULL, "plan:file=/nonesuch"), GRADCOMP_ERR_NOTFOUND, "no such plan");
	is_int(refused(4, 1, "gtopk", "ring", NULL), GRADCOMP_ERR_UNSUPPORTED, "a pair that does not go together");
	is_int(refused(4, 1, NULL, "sumonly", NULL), GRADCOMP_ERR_UNSUPPORTED, "a collective that tells no costs");
	like(e.text, "collective 'sumonly' does not tell what its calls cost", "is named");
	is_int(refused(4, 1, NULL, "nocost", NULL), GRADCOMP_ERR_INTERNAL, "one whose costs are NaN");
	like(e.text, "collective 'nocost' tells costs that are no numbers", "is named");
	machine.level[0] = (linear){0, 0};
	is_int(refused(4, 2, NULL, "hier", NULL), GRADCOMP_ERR_UNSUPPORTED,
	       "ranks of a node, of which nothing is known");
	like(e.text, "it says nothing of [node]", "and what is missing is said");
	machine.level[0] = (linear){1e-4, 1e-9};
	machine.reduce = NAN;
	is_int(refused(4, 1, NULL, NULL, NULL), GRADCOMP_ERR_INVALID, "a machine with NaN");
	machine.reduce = 1e-9;
	tensors[1].backward = -1;
	is_int(refused(4, 1, NULL, NULL, NULL), GRADCOMP_ERR_INVALID, "a pass back in time");
	tensors[1].backward = 0.04;
}

int main(void)
{
	const char *path = strchr(plugin_path_setting(), '=') + 1;
	int build = (int)(strlen(path) - strlen("lib/gradcomp"));
	char all[9000], from[4300], to[100];
	tmpdir_make("predict");
	/* BUILD/lib/gradcomp, BUILD/tests/plugins and a faulty one. */
	snprintf(all, sizeof all, "%s:%.*stests/plugins:%s", path, build, path, tmpdir);
	setenv("GRADCOMP_PLUGIN_PATH", all, 1);
	snprintf(to, sizeof to, "%s/collectives", tmpdir);
	mkdir(to, 0700);
	snprintf(from, sizeof from, "%.*stests/plugins/faulty/nocost.so", build, path);
	snprintf(to, sizeof to, "%s/collectives/nocost.so", tmpdir);
	ok(!symlink(from, to), "a faulty collective");
	dense();
	compressed();
	honest();
	uncertain();
	many();
	schedules();
	bad();
	return done_testing();
}
