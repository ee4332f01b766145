/* Text and files from outside, mutated at random from good ones: SPECs and settings
 * files. Nothing crashes (run it under a sanitizer), what is refused
 * is refused in words, what is accepted reads back as itself.
 *
 * GRADCOMP_FUZZ_SEED and GRADCOMP_FUZZ_ROUNDS repeat a run or make a longer one. */
#include "config/config.h"
#include "base/number.h"
#include "config/spec.h"

#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t state;

static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 33) % below);
}

/* One to four edits; `room` is the most bytes there may be. */
static size_t mutate(char *data, size_t bytes, size_t room, const char *words)
{
	for (uint32_t edits = 1 + draw(4); edits; edits--) {
		size_t at = draw((uint32_t)bytes + 1), n = 1 + draw(8);

		switch (draw(5)) {
		case 0: /* another byte */
			if (at < bytes)
				data[at] = (char)draw(256);
			break;
		case 1: /* take out */
			n = n < bytes - at ? n : bytes - at;
			memmove(data + at, data + at + n, bytes - at - n);
			bytes -= n;
			break;
		case 2: /* repeat */
			n = n < bytes - at ? n : bytes - at;
			if (bytes + n <= room) {
				memmove(data + at + n, data + at, bytes - at);
				bytes += n;
			}
			break;
		case 3: /* a byte that means something */
			if (bytes < room) {
				memmove(data + at + 1, data + at, bytes - at);
				data[at] = words[draw((uint32_t)strlen(words))];
				bytes++;
			}
			break;
		default: /* cut */
			if (draw(4) == 0)
				bytes = at;
		}
	}
	return bytes;
}

/* A refusal has a code and words that a terminal can show. */
static int well_said(gradcomp_status status, const gradcomp_error *e)
{
	if (status >= 0 || status < GRADCOMP_ERR_INTERNAL || status != e->status || !e->text[0])
		return 0;
	for (const char *p = e->text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return 0;
	return 1;
}

static const char *const types[] = {"fp16", "bf16", NULL};
static const gradcomp_param rows[] = {
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 1, .max = 64, .help = "h"},
	{.name = "density", .type = GRADCOMP_PARAM_FLOAT, .def = "0.01", .help = "h"},
	{.name = "warm", .type = GRADCOMP_PARAM_BOOL, .def = "yes", .help = "h"},
	{.name = "block", .type = GRADCOMP_PARAM_SIZE, .def = "256K", .help = "h"},
	{.name = "type", .type = GRADCOMP_PARAM_CHOICE, .def = "fp16", .choices = types, .help = "h"},
	{.name = "layers", .type = GRADCOMP_PARAM_STRING, .def = "", .help = "h"},
};
static const gradcomp_plugin_info info = {.name = "sample", .params = rows, .nparams = 6};

static int one_spec(void)
{
	static const char *const seeds[] = {"sample:rank=8,density=1e-3,warm=no",
	                                    "sample:block=8MB,type=bf16,layers=a/b/c",
	                                    "sample:density=-0.5e300,block=9223372036854775807", "sample"};
	char text[200], name[SPEC_NAME_MAX];
	gradcomp_error e = {0};
	gradcomp_status st;
	spec s, again;
	size_t n;
	int good;
	snprintf(text, sizeof text, "%s", seeds[draw(4)]);
	n = mutate(text, strlen(text), sizeof text - 1, ":=,.0123456789eE+-KMGTB/xn");
	text[n] = '\0';
	st = spec_name(text, name, &e);
	if (st && !well_said(st, &e))
		return 0;
	st = spec_parse(&info, text, &s, &e);
	if (st)
		return well_said(st, &e);
	if (spec_parse(&info, s.text, &again, &e)) {
		printf("# '%s' -> '%s': %s\n", text, s.text, e.text);
		spec_clear(&s);
		return 0;
	}
	good = !strcmp(s.text, again.text) && s.values[1].f == again.values[1].f && s.values[3].i == again.values[3].i;
	spec_clear(&s);
	spec_clear(&again);
	return good;
}

static char conf[128];

static int one_conf(void)
{
	static const char good[] = "# settings\n[gradcomp]\ncompressor = topk:density=0.1 ; why\nlog=debug\n\n"
				   "[transport]\r\ntimeout: 45\nallow = tcp,shm\nchunk = 1M\n[stage]\nmax_bytes = 5G\n";
	char data[400];
	gradcomp_error e = {0};
	gradcomp_status st;
	config *c;
	FILE *f;
	size_t n;
	memcpy(data, good, sizeof good);
	n = mutate(data, sizeof good - 1, sizeof data, "[]=:;#\n\r \t");
	f = fopen(conf, "w");
	if (!f || fwrite(data, 1, n, f) != n || fclose(f))
		exit(2);
	st = config_load(NULL, &c, &e);
	if (st)
		return well_said(st, &e) && strstr(e.text, conf);
	config_free(c);
	return 1;
}

static void run(const char *name, int (*one)(void), long rounds)
{
	long bad = 0;
	for (long i = 0; i < rounds; i++)
		bad += !one();
	tap_tried((unsigned long)rounds, "mutated inputs");
	is_int(bad, 0, "%s, %ld times", name, rounds);
}

int main(void)
{
	const char *seed = getenv("GRADCOMP_FUZZ_SEED"), *times = getenv("GRADCOMP_FUZZ_ROUNDS");
	long rounds = times ? strtol(times, NULL, 10) : 20000;
	state = (seed ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
	umask(022);
	unsetenv("GRADCOMP");
	tmpdir_make("fuzz");
	snprintf(conf, sizeof conf, "%s/gradcomp.conf", tmpdir);
	setenv("GRADCOMP_CONF", conf, 1);
	run("SPEC", one_spec, rounds);
	run("settings file", one_conf, rounds / 4);
	return done_testing();
}
