/* The JSON writer: every byte of the text. */
#include "base/json.h"

#include "tests/support/tap.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

static const char *quoted(const char *text)
{
	static char out[400];
	char *buffer = NULL;
	size_t bytes;
	FILE *f = open_memstream(&buffer, &bytes);
	jsonw j;
	json_put_start(&j, f);
	json_put_string(&j, NULL, text);
	fclose(f);
	snprintf(out, sizeof out, "%s", buffer);
	free(buffer);
	return out;
}

static void strings(void)
{
	is_str(quoted("plain"), "\"plain\"", "plain");
	is_str(quoted(""), "\"\"", "empty");
	is_str(quoted(NULL), "null", "NULL");
	is_str(quoted("a\"b\\c/"), "\"a\\\"b\\\\c/\"", "quotes and backslashes");
	is_str(quoted("a\nb\tc\001\177"), "\"a\\nb\\u0009c\\u0001\\u007f\"", "control characters");
	is_str(quoted("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
	       "UTF-8 of 2, 3 and 4 bytes");
	is_str(quoted("\xf4\x8f\xbf\xbf"), "\"\xf4\x8f\xbf\xbf\"", "the last code point");
	is_str(quoted("a\xff"
	              "b"),
	       "\"a\\ufffdb\"", "a byte that is not UTF-8");
	is_str(quoted("\xc3"), "\"\\ufffd\"", "cut off at the end");
	is_str(quoted("\xe2\x82"), "\"\\ufffd\\ufffd\"", "cut off, two bytes");
	is_str(quoted("\xe2\x82"
	              "x"),
	       "\"\\ufffd\\ufffdx\"", "cut off in the middle");
	is_str(quoted("\xc0\x80"), "\"\\ufffd\\ufffd\"", "overlong zero");
	is_str(quoted("\xe0\x9f\xbf"), "\"\\ufffd\\ufffd\\ufffd\"", "overlong, three bytes");
	is_str(quoted("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"", "a surrogate");
	is_str(quoted("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"", "beyond the last code point");
	is_str(quoted("\x80"), "\"\\ufffd\"", "a stray continuation");
}

static void structure(void)
{
	static const char want[] = "{\n"
				   "  \"a\": [],\n"
				   "  \"b\": {},\n"
				   "  \"c\": [\n"
				   "    1,\n"
				   "    -2,\n"
				   "    {\n"
				   "      \"x\": 0.5,\n"
				   "      \"y\": null,\n"
				   "      \"z\": true\n"
				   "    }\n"
				   "  ],\n"
				   "  \"d\": 18446744073709551615,\n"
				   "  \"e\": 1e+300,\n"
				   "  \"f\": null,\n"
				   "  \"g\": false\n"
				   "}\n";
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	jsonw j;
	json_put_start(&j, f);
	json_put_object(&j, NULL);
	json_put_array(&j, "a");
	json_put_end(&j);
	json_put_object(&j, "b");
	json_put_end(&j);
	json_put_array(&j, "c");
	json_put_uint(&j, NULL, 1);
	json_put_int(&j, NULL, -2);
	json_put_object(&j, NULL);
	json_put_float(&j, "x", 0.5);
	json_put_float(&j, "y", NAN);
	json_put_bool(&j, "z", 7);
	json_put_end(&j);
	json_put_end(&j);
	json_put_uint(&j, "d", UINT64_MAX);
	json_put_float(&j, "e", 1e300);
	json_put_float(&j, "f", -INFINITY);
	json_put_bool(&j, "g", 0);
	json_put_end(&j);
	json_put_finish(&j);
	fclose(f);
	is_str(text, want, "objects and arrays");
	free(text);
}

static void lines(void)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	jsonw j;
	json_put_start(&j, f);
	j.flat = 2;
	json_put_object(&j, NULL);
	json_put_array(&j, "rows");
	for (int i = 0; i < 2; i++) {
		json_put_object(&j, NULL);
		json_put_int(&j, "a", i);
		json_put_object(&j, "b");
		json_put_end(&j);
		json_put_array(&j, "c");
		json_put_int(&j, NULL, 7);
		json_put_int(&j, NULL, 8);
		json_put_end(&j);
		json_put_end(&j);
	}
	json_put_end(&j);
	json_put_end(&j);
	fclose(f);
	is_str(text,
	       "{\n  \"rows\": [\n    {\"a\": 0,\"b\": {},\"c\": [7,8]},\n    {\"a\": 1,\"b\": {},\"c\": [7,8]}\n  ]\n}",
	       "what is deeper is on one line");
	free(text);
}

int main(void)
{
	strings();
	structure();
	lines();
	return done_testing();
}
