/* Payloads of a peer that lies: any answer but a crash, a hang or a write out of
 * bounds is right, and an error has a text. */
#include <math.h>
#include <string.h>

#include "conformance/kit.h"

static guarded lie;
static int lies_left;
static uint64_t numel;

/* Values at the edges: of counts, indices and floats. */
static uint32_t edge(void)
{
	const float inf = INFINITY, huge = 3e38f;
	uint32_t words[] = {0, 1, UINT32_MAX, INT32_MAX, 0x80000000u, 0x7fc00000u, (uint32_t)numel, (uint32_t)numel + 1,
	                    0, 0};
	memcpy(&words[8], &inf, 4);
	memcpy(&words[9], &huge, 4);
	return words[random_check() % (sizeof words / sizeof words[0])];
}

static void tamper(ranks *s, gradcomp_payload *in, uint32_t n)
{
	uint32_t w = n > 1; /* the peer's */
	uint64_t had = in[w].bytes, bytes = had;
	if (lies_left-- > 0 && random_check() % 2)
		return; /* not every one of a step */
	/* Lengths are the host's for what is summed or merged. */
	if ((s->patterns & ~GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) & ~GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED)) && n > 1 &&
	    random_check() % 3 == 0)
		bytes = random_check() % (in[w].capacity + 1);
	guard_free(&lie);
	lie = guard("what a peer sent", bytes, 8);
	memcpy(lie.data, in[w].data, bytes < had ? bytes : had);
	for (uint64_t edits = random_check() % 4; bytes && edits--;)
		if (bytes >= 4 && random_check() % 2) {
			uint32_t word = edge();
			memcpy(lie.data + random_check() % (bytes / 4) * 4, &word, 4);
		} else {
			lie.data[random_check() % bytes] ^= (char)(1 + random_check() % 255);
		}
	guard_lock(&lie, 1);
	in[w].data = lie.data;
	in[w].bytes = bytes;
}

void peers_group(kit *k)
{
	int refused = 0, times = k->options->thorough ? 4000 : 240;
	float *g[RANKS_MAX];
	for (int i = 0; i < times; i++) {
		ranks s;
		if (!kit_open(k, &s, 2 + i % 2, &fixture_models[i / 4 % MODELS]))
			return;
		fixture_gradients_new(&s, g);
		fixture_fill(&k->fixture, &s, g, KIND_NORMAL);
		numel = s.numel;
		s.step = i & 2 ? kit_some_step() : 0;
		lies_left = 2;
		s.tamper = tamper;
		gradcomp_status st = ranks_step(&s, g, 0);
		refused += st != 0;
		if (st && (s.broke || !s.err.text[0]))
			kit_fail(k, RULE_PEERS, "a tampered payload: %s",
			         s.broke ? s.err.text : "the step fails without a word");
		if (!s.intact)
			kit_fail(k, RULE_PEERS, "a tampered payload leads to writes beside a buffer");
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	guard_free(&lie);
	kit_ok(k, RULE_PEERS, "of %d steps with tampered payloads %d were refused, in words; the others did no harm",
	       times, refused);
}
