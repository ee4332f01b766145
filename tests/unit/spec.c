/* SPEC: what is taken, what is refused and in which words, and that the
 * canonical text reads back as the same values. */
#include "config/spec.h"

#include "gradcomp/gradcomp.h"
#include "base/suggest.h"

#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

static const char *const types[] = {"fp16", "bf16", NULL};

static const gradcomp_param rows[] = {
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 1, .max = 64, .help = "h"},
	{.name = "density", .type = GRADCOMP_PARAM_FLOAT, .def = "0.01", .min = 0, .max = 1, .help = "h"},
	{.name = "warm_start", .type = GRADCOMP_PARAM_BOOL, .def = "yes", .help = "h"},
	{.name = "block", .type = GRADCOMP_PARAM_SIZE, .def = "256K", .min = 4096, .max = 1 << 30, .help = "h"},
	{.name = "type", .type = GRADCOMP_PARAM_CHOICE, .def = "fp16", .choices = types, .help = "h"},
	{.name = "layers", .type = GRADCOMP_PARAM_STRING, .def = "", .help = "h"},
	{.name = "free", .type = GRADCOMP_PARAM_INT, .def = "-3", .help = "h"},
};
static const gradcomp_plugin_info info = {
	.abi_version = 1, .name = "lowrank", .params = rows, .nparams = sizeof rows / sizeof rows[0]};
static const gradcomp_param needed[] = {{.name = "file", .type = GRADCOMP_PARAM_STRING, .help = "h"}};
static const gradcomp_plugin_info strict = {.name = "strict", .params = needed, .nparams = 1};
static const gradcomp_plugin_info bare = {.name = "bare"};

static gradcomp_error e;

/* The canonical text, or the error's. */
static const char *parsed(const gradcomp_plugin_info *p, const char *text)
{
	static char out[600];
	spec s;
	if (spec_parse(p, text, &s, &e))
		return e.text;
	snprintf(out, sizeof out, "%s", s.text);
	spec_clear(&s);
	return out;
}

static void names(void)
{
	static const char *const refused[] = {
		"",   ":rank=4", "Top", "../x", "a/b", "a b",  "-x",
		"_x", ".so",     "a.b", "help", "off", "a\nb", "name12345678901234567890123456789"};
	char name[SPEC_NAME_MAX];
	is_int(spec_name("topk:density=0.1", name, &e), 0, "name with parameters");
	is_str(name, "topk", "the name alone");
	is_int(spec_name("1bit", name, &e), 0, "a name may begin with a digit");
	is_int(spec_name("gtop-k_2", name, &e), 0, "all letters");
	is_int(spec_name("name123456789012345678901234567", name, &e), 0, "31 characters");
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
		is_int(spec_name(refused[i], name, &e), GRADCOMP_ERR_INVALID, "refused: %s",
		       i == 12 ? "newline" : refused[i]);
	is_int(spec_name("PowerSGD:rank=4", name, &e), GRADCOMP_ERR_INVALID, "capital letters");
	like(e.text, "'PowerSGD' cannot be a name (did you mean 'powersgd'?); a name is made",
	     "are small ones in names");
	spec_name("A/b", name, &e);
	like(e.text, "'A/b' cannot be a name; a name is made", "unless that is no name either");
}

static void good(void)
{
	static const char all[] = "lowrank:rank=4,density=0.01,warm_start=yes,block=256K,type=fp16,free=-3";
	spec s;
	is_str(parsed(&info, "lowrank"), all, "defaults");
	is_str(parsed(&info, all), all, "canonical text reads back");
	is_str(parsed(&info, "lowrank:layers=a/b/c,type=bf16,rank=64,block=8MB,warm_start=off,density=1e-3,free=+7"),
	       "lowrank:rank=64,density=0.001,warm_start=no,block=8M,type=bf16,layers=a/b/c,free=7", "any order");
	is_str(parsed(&bare, "bare"), "bare", "no parameters");
	is_str(parsed(&strict, "strict:file=x=y:z"), "strict:file=x=y:z", "'=' and ':' inside a value");

	is_int(spec_parse(&info, "lowrank:density=0.1,layers=q,type=bf16", &s, &e), 0, "values");
	is_int(s.nvalues, 7, "one a row");
	ok(s.values[1].f == 0.1, "float");
	is_int(s.values[3].i, 262144, "size");
	is_int(s.values[4].i, 1, "choice by index");
	is_str(s.values[4].s, "bf16", "choice by name");
	is_str(s.values[5].s, "q", "string");
	spec_clear(&s);
	ok(!s.text && !s.values, "cleared");
}

/* A boolean by its name alone. */
static void flags(void)
{
	spec s;
	is_int(spec_parse(&info, "lowrank:warm_start", &s, &e), 0, "a boolean by its name alone: %s", e.text);
	like(s.text, "warm_start=yes", "is so");
	spec_clear(&s);
	is_int(spec_parse(&info, "lowrank:warm_start=", &s, &e), GRADCOMP_ERR_INVALID,
	       "with nothing behind '=' it is refused");
}

static void bad(void)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"lowrank:", "a parameter without a name"},
		{"lowrank:rank=4,", "a parameter without a name"},
		{"lowrank:,rank=4", "a parameter without a name"},
		{"lowrank:=4", "a parameter without a name before '4'"},
		{"lowrank:rank", "no value for parameter 'rank'"},
		{"lowrank:rank=", "no value for parameter 'rank'"},
		{"lowrank:layers=", "no value for parameter 'layers'"},
		{"lowrank:rank=1,rank=1", "parameter given twice: 'rank'"},
		{"lowrank: rank=1", "unknown parameter ' rank' (did you mean 'rank'?)"},
		{"lowrank:rnak=4", "lowrank: unknown parameter 'rnak' (did you mean 'rank'?); it takes "
	                           "rank=INT (1..64, default 4), density=FLOAT (0..1, default 0.01)"},
		{"lowrank:bf16", "unknown parameter 'bf16' (did you mean 'type=bf16'?)"},
		{"lowrank:7", "unknown parameter '7' (did you mean 'rank=7'?)"},
		{"lowrank:0.3", "unknown parameter '0.3' (did you mean 'density=0.3'?)"},
		{"lowrank:warm=no", "unknown parameter 'warm' (did you mean 'warm_start'?)"},
		{"lowrank:bf16=4", "unknown parameter 'bf16'; it takes"},
		{"lowrank:quux=4", "unknown parameter 'quux'; it takes"},
		{"lowrank:rank=0", "rank: '0' is too small; rank=INT (1..64, default 4)"},
		{"lowrank:rank=65", "rank: '65' is too large"},
		{"lowrank:rank=4x", "rank: '4x' is not an integer"},
		{"lowrank:rank=4.0", "is not an integer"},
		{"lowrank:rank= 4", "is not an integer"},
		{"lowrank:rank=0x4", "is not an integer"},
		{"lowrank:rank=99999999999999999999", "is out of range"},
		{"lowrank:free=-99999999999999999999", "is out of range"},
		{"lowrank:density=nan", "density: 'nan' is not a number"},
		{"lowrank:density=inf", "is not a number"},
		{"lowrank:density=1e999", "is out of range"},
		{"lowrank:density=1e", "is not a number"},
		{"lowrank:density=-", "is not a number"},
		{"lowrank:density=0x1p-1", "is not a number"},
		{"lowrank:density=1.0000001", "is too large; density=FLOAT (0..1, default 0.01)"},
		{"lowrank:density=-1e-300", "is too small"},
		{"lowrank:warm_start=maybe", "is not yes or no; warm_start=yes|no (default yes)"},
		{"lowrank:block=1.5M", "is not a size"},
		{"lowrank:block=8X", "is not a size"},
		{"lowrank:block=-8K", "is not a size"},
		{"lowrank:block=M", "is not a size"},
		{"lowrank:block=99999999999G", "is out of range"},
		{"lowrank:block=1K", "is too small; block=SIZE (4K..1G, default 256K)"},
		{"lowrank:block=2G", "is too large"},
		{"lowrank:type=fp8", "is not a choice; type=fp16|bf16 (default fp16)"},
		{"lowrank:type=", "no value"},
		{"lowrank:layers=a\tb", "has a control character"},
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		like(parsed(&info, cases[i].text), cases[i].says, cases[i].text[1] == 'o' ? cases[i].text + 7 : "?");
	like(parsed(&strict, "strict"), "missing parameter 'file'; it takes file=TEXT (required)", "required");
	like(parsed(&bare, "bare:x=1"), "unknown parameter 'x'; it takes no parameters", "takes none");
}

static int64_t size_of(const char *text)
{
	static const gradcomp_param row = {.name = "s", .type = GRADCOMP_PARAM_SIZE, .def = "0"};
	gradcomp_value v;
	return spec_value(&row, text, &v, &e) ? -1 : v.i;
}

static void sizes(void)
{
	is_int(size_of("0"), 0, "0");
	is_int(size_of("4096"), 4096, "4096");
	is_int(size_of("4096B"), 4096, "4096B");
	is_int(size_of("64k"), 65536, "64k");
	is_int(size_of("8MB"), 8 << 20, "8MB");
	is_int(size_of("8MiB"), 8 << 20, "8MiB");
	is_int(size_of("2G"), 2LL << 30, "2G");
	is_int(size_of("1T"), 1LL << 40, "1T");
	is_int(size_of("9223372036854775807"), INT64_MAX, "the largest");
	is_int(size_of("9223372036854775808"), -1, "one more");
	is_int(size_of("8388607T"), 8388607LL << 40, "the largest in T");
	is_int(size_of("8388608T"), -1, "one more T");
	is_int(size_of("Ki"), -1, "no digits");
	is_int(size_of("1Ki"), -1, "half a unit");
	is_int(size_of("1KBB"), -1, "trailing junk");
}

/* A locale with a decimal comma, made for this test where none is installed. */
static int comma_locale(void)
{
	char command[200];
	int found;
	if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "fr_FR.UTF-8"))
		return 1;
	tmpdir_make("locale");
	snprintf(command, sizeof command, "localedef --no-archive -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null",
	         tmpdir);
	found = system(command) != -1 && !setenv("LOCPATH", tmpdir, 1) && setlocale(LC_NUMERIC, "de_DE.UTF-8");
	unsetenv("LOCPATH");
	return found;
}

/* Every float comes back to the bit, in a locale that writes "0,5" too. */
static void round_trip(void)
{
	static const gradcomp_param row[] = {{.name = "x", .type = GRADCOMP_PARAM_FLOAT, .def = "0"}};
	static const gradcomp_plugin_info one = {.name = "one", .params = row, .nparams = 1};
	uint64_t bits = 88172645463325252ull;
	int wrong = 0;
	char text[64];
	for (int i = 0; i < 2000; i++) {
		double x;
		spec s, t;

		bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
		memcpy(&x, &bits, sizeof x);
		if (!isfinite(x))
			continue;
		snprintf(text, sizeof text, "one:x=%.17g", x);
		for (char *p = strchr(text, '='); *p; p++)
			if (*p == ',')
				*p = '.';
		if (spec_parse(&one, text, &s, &e)) {
			wrong++;
			continue;
		}
		wrong += s.values[0].f != x || spec_parse(&one, s.text, &t, &e) || t.values[0].f != x ||
		         strcmp(s.text, t.text);
		spec_clear(&s);
		spec_clear(&t);
	}
	is_int(wrong, 0, "floats round-trip (locale %s)", setlocale(LC_NUMERIC, NULL));
}

static void suggestions(void)
{
	suggest s;
	suggest_start(&s, "powerdsg");
	suggest_try(&s, "topk");
	suggest_try(&s, "powersgd");
	is_str(suggest_text(&s), " (did you mean 'powersgd'?)", "swapped letters");
	suggest_start(&s, "zfp");
	suggest_try(&s, "topk");
	is_str(suggest_text(&s), "", "nothing near");
	suggest_start(&s, "");
	suggest_try(&s, "a");
	is_str(suggest_text(&s), "", "nothing typed");
}

static void long_tables(void)
{
	static gradcomp_param many[60];
	static const gradcomp_plugin_info big = {.name = "big", .params = many, .nparams = 60};
	for (int i = 0; i < 60; i++)
		many[i] = (gradcomp_param){.name = "a_rather_long_name", .type = GRADCOMP_PARAM_INT, .def = "1"};
	spec s;
	is_int(spec_parse(&big, "big:b=1", &s, &e), GRADCOMP_ERR_INVALID, "a long table");
	is_str(e.text + strlen(e.text) - 3, "...", "is cut and says so");
}

static void lists(void)
{
	static const struct {
		const char *list, *items; /* each in brackets */
	} cases[] = {
		{"", ""},
		{"none", "[none]"},
		{"none,topk", "[none][topk]"},
		{" none , topk ", "[none][topk]"},
		{"topk:density=0.01,values=f32,none", "[topk:density=0.01,values=f32][none]"},
		{"cast:type=bf16, powersgd:rank=4,min_ratio=2 ,none",
	         "[cast:type=bf16][powersgd:rank=4,min_ratio=2][none]"},
		{"plan:file=/a:b/c,fixed:bytes=1M,auto", "[plan:file=/a:b/c][fixed:bytes=1M][auto]"},
		{"a@ring:chunk=1,small=2,b", "[a@ring:chunk=1,small=2][b]"},
		{"a,", "[a]"},
		{",", "[]"},
		{"a,,b", "[a][][b]"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *at = cases[i].list, *item;
		char got[200] = "";
		size_t n;
		while ((item = spec_list_next(&at, &n)))
			snprintf(got + strlen(got), sizeof got - strlen(got), "[%.*s]", (int)n, item);
		is_str(got, cases[i].items, cases[i].list);
	}
}

int main(void)
{
	names();
	good();
	flags();
	bad();
	sizes();
	round_trip();
	if (comma_locale())
		round_trip();
	else
		skip("there is no locale with a decimal comma and no localedef", "floats round-trip in another locale");
	suggestions();
	long_tables();
	lists();
	return done_testing();
}
