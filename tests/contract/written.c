/* encode() writes every byte of its payload: what it left out would be memory of the
 * process, sent to all peers. Two runs of the same, whose payloads hold different bytes
 * before; a byte that differs behind encode() the way it did before was not written. */
#include "plugin/operators_v1.h"
#include "tests/support/codec_fixture.h"
#include "conformance/fixture.h"
#include "tests/support/operator_input.h"

#include <dirent.h>

enum { P = 3, STEPS = 3, BEFORE = 0x5a, BEFORE_TOO = 0xc3 };

/* The payloads of these compressors depend on their parameters; all others as they are. */
static const char *const specs[] = {
	"acpsgd:rank=2,min_ratio=0",
	"block:bits=4,block=32",
	"block:bits=2,block=32",
	"blocktopk:density=0.2,block=8",
	"blocktopk:density=0.2,rows=yes",
	"demo:chunk=5,k=3",
	"dion:rank=2,min_ratio=0",
	"lqsgd:rank=3,min_ratio=0",
	"lqsgd:rank=3,min_ratio=0,bits=4,block=32",
	"lqsgd:rank=3,min_ratio=0,bits=4,block=32,levels=log",
	"powersgd:rank=2,min_ratio=0",
	"qsgd:levels=1,block=32",
	"qsgd:levels=127",
	"topk:density=0.2,values=bf16",
	"topk:density=0.2,indices=delta,values=fp16",
	"topk:density=0.2,indices=bitmap,values=block8",
	"topk:density=0.2,indices=bitmap,values=block4",
};

static unsigned char *was; /* the payloads of the first run, in order */
static size_t room, at;
static uint64_t left, others;
static int second;

static void made(ranks *s, const gradcomp_bucket *bucket, uint32_t round, int rank, gradcomp_payload *payload)
{
	const unsigned char *now = payload->data;
	(void)s, (void)bucket, (void)round, (void)rank;
	if (at + payload->bytes > room) {
		room = 2 * room + payload->bytes;
		unsigned char *more = realloc(was, room);
		if (!more)
			abort();
		was = more;
	}
	for (uint64_t i = 0; i < payload->bytes; i++) {
		if (!second)
			was[at + i] = now[i];
		else if (was[at + i] == BEFORE && now[i] == BEFORE_TOO)
			left++;
		else
			others += was[at + i] != now[i];
	}
	at += payload->bytes;
}

static gradcomp_status run(const codec *c, uint32_t n, uint64_t (*dims)[2], const uint64_t *seeds, gradcomp_error *err)
{
	float *g[RANKS_MAX];
	ranks s;
	gradcomp_status st = ranks_open(&s, c->plugin, operators_cpu(), c->parsed.values, P, n, dims, seeds[0]);
	if (!st) {
		s.stale = second ? BEFORE_TOO : BEFORE;
		s.made = made;
		ranks_plan(&s, 700);
		fixture_gradients_new(&s, g);
		at = 0;
		for (int step = 0; !st && step < STEPS; step++) {
			for (int w = 0; w < P; w++) {
				operators_v1()->random_uniform(NULL, g[w], s.layout[0].numel, seeds[1], (uint64_t)w,
				                               (uint64_t)step * s.layout[0].numel);
				for (uint64_t i = 0; i < s.layout[0].numel; i++)
					g[w][i] -= 0.5f;
			}
			st = ranks_step(&s, g, 0);
		}
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	*err = s.err;
	return st;
}

static void written(const char *text)
{
	const uint64_t seeds[2] = {test_random(), test_random()};
	uint64_t dims[6][2];
	codec c;
	gradcomp_status st = codec_load(&c, text);
	for (int i = 0; i < 6; i++) {
		dims[i][0] = 1 + test_random() % 40;
		dims[i][1] = i % 3 ? 1 + test_random() % 30 : 0;
	}
	left = others = 0;
	for (second = 0; !st && second < 2; second++)
		st = run(&c, 6, dims, seeds, &c.err);
	ok(!st && !left && !others, "%s: every byte of %zu of payloads is written", text, at);
	if (st || left || others)
		printf("# %s; %llu bytes are as they were before, %llu differ otherwise\n", st ? c.err.text : "",
		       (unsigned long long)left, (unsigned long long)others);
	codec_close(&c);
}

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096];
	struct dirent *e;
	test_seed();
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors", build ? build : ".");
	DIR *d = opendir(path);
	while (d && (e = readdir(d))) {
		char *dot = strstr(e->d_name, ".so");
		if (dot && !dot[3]) {
			*dot = 0;
			written(e->d_name);
		}
	}
	ok(d != NULL, "the compressors of the build");
	if (d)
		closedir(d);
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
		written(specs[i]);
	free(was);
	return done_testing();
}
