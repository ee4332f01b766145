/* Sums of what ranks have coded, against their definition: every coding, ranks and parts beyond what a launch takes,
 * what a peer might send instead. */
#include "tests/support/operator_input.h"

#include "tests/support/coded_input.h"

static const size_t ranks_of[] = {0, 1, 2, 3, 17, 131}, parts_of[] = {1, 3, 45};

static int same(const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(&a[i], &b[i], sizeof *a) && !(isnan(a[i]) && isnan(b[i]))) {
			printf("# number %zu of %zu: %a, not %a\n", i, n, a[i], b[i]);
			return 0;
		}
	return 1;
}

enum { FROM_ZERO, FROM_X, IN_PLACE, CHECKED };

static void point(coded_input *c, int how)
{
	size_t at = 0;
	for (size_t i = 0; i < c->parts; at += c->part[i++].n) {
		c->part[i].y = how == CHECKED ? NULL : how == IN_PLACE ? c->x + at : c->y + at;
		c->part[i].x = how == FROM_X || how == IN_PLACE ? c->x + at : NULL;
		c->part[i].scale = &c->scale[i];
	}
}

static int one(const gradcomp_operators *op, unsigned kind, size_t parts, size_t ranks, size_t most, int how,
               int damaged)
{
	coded_input c;
	int fault = 0, right, wrong;
	coded_make(&c, kind, parts, ranks, most);
	if (damaged)
		coded_damage(&c);
	point(&c, how);
	float *want = calloc(c.n + 1, sizeof *want);
	wrong = coded_sum(&c, want, how == FROM_X || how == IN_PLACE);
	op->codes_sum(NULL, &c.coding, c.part, c.parts, (const void *const *)c.payload, c.ranks, c.a,
	              damaged || test_random() % 2 ? &fault : NULL);
	right = damaged ? fault == wrong : fault == 0 && !wrong;
	if (!right)
		printf("# fault %d, not %d\n", fault, wrong);
	if (how == CHECKED)
		for (size_t i = 0; i < c.n; i++)
			right &= isnan(c.y[i]) != 0;
	else if (!wrong)
		right &= same(how == IN_PLACE ? c.x : c.y, want, c.n) && isnan(c.y[c.n]);
	if (!right)
		printf("# %s, %zu parts, %zu ranks, %zu numbers, way %d\n", coded_kinds[kind], parts, ranks, c.n, how);
	free(want);
	coded_free(&c);
	return right;
}

static void each(const char *name, const gradcomp_operators *op)
{
	for (unsigned kind = 0; kind < CODED_KINDS; kind++) {
		int right = 1, found = 1, cases = 0;
		for (size_t r = 0; r < sizeof ranks_of / sizeof *ranks_of; r++)
			for (size_t p = 0; p < sizeof parts_of / sizeof *parts_of; p++)
				for (int how = 0; how <= CHECKED; how++, cases += 2) {
					const size_t most = ranks_of[r] > 17 || parts_of[p] > 3 ? 150 : 3000;
					right &= one(op, kind, parts_of[p], ranks_of[r], most, how, 0);
					found &= one(op, kind, parts_of[p], ranks_of[r], most, how, 1);
				}
		ok(right, "%s: sums of %s, to the bit, %d cases", name, coded_kinds[kind], cases / 2);
		ok(found, "%s: and what nobody could have sent is found, and only that", name);
	}
}

/* Numbers that several threads share. */
static void divided(const gradcomp_operators *op)
{
	for (unsigned kind = 0; kind < CODED_KINDS; kind++) {
		int right = 1;
		for (int i = 0; i < 6; i++)
			right &= one(op, kind, 2, 3, 400000, i % 4, i == 5);
		ok(right, "divided among threads: sums of %s", coded_kinds[kind]);
	}
}

int main(void)
{
	test_seed();
	test_variants(each);
	divided(operators_cpu());
	return done_testing();
}
