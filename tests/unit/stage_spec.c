/* SPECs of what is to be staged: what they mean, what is refused and in which words. */
#include "tests/support/tap.h"
#include "tools/stage_spec.c"

static char why[400];

/* With what is left out and how. */
static void means_all(const char *text, const char *want)
{
	stage_spec spec = {0};
	char got[4000] = "";
	if (stage_spec_parse(text, &spec, why, sizeof why))
		snprintf(got, sizeof got, "refused: %s", why);
	for (int i = 0; i < spec.n; i++) {
		const stage_source *s = &spec.source[i];
		size_t n = strlen(got);

		n += (size_t)snprintf(got + n, sizeof got - n, "%s[%s %s %s", i ? " " : "", s->path,
		                      s->mode < 0 ? "-" : "?", s->verify < 0 ? "-" : "?");
		if (s->exclude)
			n += (size_t)snprintf(got + n, sizeof got - n, " %s", s->exclude);
		for (char *p; (p = strchr(got, '\n'));)
			*p = '|';
		if (s->links >= 0)
			n += (size_t)snprintf(got + n, sizeof got - n, " %s", stage_spec_links_name(s->links));
		if (s->unreadable >= 0)
			n += (size_t)snprintf(got + n, sizeof got - n, " %s", s->unreadable ? "skip" : "refuse");
		snprintf(got + n, sizeof got - n, "]");
	}
	is_str(got, want, text);
	stage_spec_clear(&spec);
}

static void means(const char *text, const char *want)
{
	stage_spec spec = {0};
	char got[4000] = "";
	if (stage_spec_parse(text, &spec, why, sizeof why))
		snprintf(got, sizeof got, "refused: %s", why);
	for (int i = 0; i < spec.n; i++)
		snprintf(got + strlen(got), sizeof got - strlen(got), "%s[%s %s %s]", i ? " " : "", spec.source[i].path,
		         spec.source[i].mode < 0 ? "-" : stage_spec_mode_name(spec.source[i].mode),
		         spec.source[i].verify < 0 ? "-" : stage_spec_verify_name(spec.source[i].verify));
	is_str(got, want, text);
	stage_spec_clear(&spec);
}

static void refused(const char *text, const char *words)
{
	stage_spec spec = {0};
	is_int(stage_spec_parse(text, &spec, why, sizeof why), -1, "refused: '%.60s'", text);
	like(why, words, "for its reason");
	for (const char *p = why; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			ok(0, "fit for a terminal");
	stage_spec_clear(&spec);
}

int main(void)
{
	means("/data", "[/data - -]");
	means("data", "[data - -]");
	means("/data:mode=shard", "[/data shard -]");
	means("/data:verify=copy,mode=link", "[/data link copy]");
	means("/data,mode=link", "[/data link -]");
	means("/a,/b", "[/a - -] [/b - -]");
	means("/a:mode=shard,/b:verify=sha,c", "[/a shard -] [/b - sha] [c - -]");
	means("nfs://server/export/x", "[nfs://server/export/x - -]");
	means("nfs://server:2049/export?uid=0&gid=0:mode=full", "[nfs://server:2049/export?uid=0&gid=0 full -]");
	means("nfs://[fd00::1]:2049/export", "[nfs://[fd00::1]:2049/export - -]");
	means("/a:b:verify=mtime", "[/a:b - mtime]");
	means("/a:b=c/d", "[/a:b=c/d - -]");
	means("/x/a=b,/c", "[/x/a=b - -] [/c - -]");
	means("a=b,./mode=shard", "[a=b - -] [./mode=shard - -]");
	means("/a\\,b,/c", "[/a,b - -] [/c - -]");
	means("/a\\\\b", "[/a\\b - -]");
	means("/a\\:mode=shard", "[/a:mode=shard - -]");
	means("/a\\:x=y:mode=shard", "[/a:x=y shard -]");
	means("/a,b\\,mode=shard", "[/a - -] [b,mode=shard - -]");
	means("./none", "[./none - -]");
	means("/a/none,/b/help", "[/a/none - -] [/b/help - -]");
	means("/with space\t\x01", "[/with space\t\x01 - -]");

	means_all("/a:exclude=*.log,exclude=logs/x,/b", "[/a - - *.log|logs/x] [/b - -]");
	means_all("/a:exclude=/a/b,links=follow,unreadable=skip", "[/a - - /a/b follow skip]");
	means_all("/a:links=rewrite,exclude=x\\,y", "[/a - - x,y rewrite]");
	means_all("/a\\:exclude=b", "[/a:exclude=b - -]");
	means_all("/a:unreadable=refuse,links=refuse", "[/a - - refuse refuse]");
	refused("/a:exclude=", "exclude=: give a glob");
	refused("/a:exclude=a\nb", "exclude=a\\x0ab: give a glob");
	refused("/a:links=copy", "links=copy: it can be refuse, follow or rewrite");
	refused("/a:unreadable=ignore", "unreadable=ignore: it can be refuse or skip");

	refused("", "a source is empty");
	refused(",", "a source is empty");
	refused("/a,", "a source is empty");
	refused("/a,,/b", "a source is empty");
	refused(":mode=full", "a source is empty");
	refused("/a:mode=half", "mode=half: it can be full, shard or link");
	refused("/a:mode=", "mode=: it can be");
	refused("/a:verify=md5", "verify=md5: it can be mtime, sha or copy");
	refused("/a:moed=full",
	        "'moed' is no option of a source (there are: mode, verify, exclude, links, unreadable)");
	refused("/a:mode=full,verfy=sha", "'verfy' is no option");
	refused("/a:mode=full,mode=link", "'mode' is given twice");
	refused("/a,none", "none and help stand alone");
	refused("help", "none and help stand alone");
	refused("/a\\", "a backslash stands before");
	refused("/a\\b", "a backslash stands before");
	refused("/a:mode=\x1b[31m", "it can be full");
	refused("\x1b]0;x\x07\\z", "a backslash stands");

	static char large[3 * STAGE_SPEC_BYTES];
	memset(large, 'x', STAGE_SPEC_BYTES);
	refused(large, "more than 4095 bytes");
	large[STAGE_SPEC_BYTES - 1] = 0;
	stage_spec spec = {0};
	is_int(stage_spec_parse(large, &spec, why, sizeof why), 0, "4095 bytes are not too many");
	stage_spec_clear(&spec);
	strcpy(large, "/s");
	for (int i = 1; i < STAGE_SOURCES; i++)
		strcat(large, ",/s");
	is_int(stage_spec_parse(large, &spec, why, sizeof why), 0, "16 sources");
	is_int(spec.n, STAGE_SOURCES, "all of them");
	is_int(stage_spec_parse("/s", &spec, why, sizeof why), -1, "no seventeenth, though in another SPEC");
	like(why, "more than 16 sources", "which is said");
	stage_spec_clear(&spec);

	/* Random text of bytes that mean something: refused in words or within its limits. */
	static const char some[] = ",:\\=/mode=shardverify,sha.\x01\xff ";
	unsigned state = 12345;
	int bad = 0;
	for (int round = 0; round < 200000; round++) {
		char t[40];
		unsigned n = (state = state * 1103515245u + 12345u) >> 16 & 31;
		for (unsigned i = 0; i < n; i++)
			t[i] = some[((state = state * 1103515245u + 12345u) >> 16) % (sizeof some - 1)];
		t[n] = 0;
		why[0] = 0;
		int status = stage_spec_parse(t, &spec, why, sizeof why);
		bad += status ? !why[0] : spec.n < 1;
		for (int i = 0; i < spec.n; i++)
			bad += !spec.source[i].path || !*spec.source[i].path;
		stage_spec_clear(&spec);
	}
	is_int(bad, 0, "200000 random SPECs");
	return done_testing();
}
