"""layouts.py SRC TMP CC [abidiff]: the public headers against those of every release in SRC/tests/golden/abi.

Prints "ok WHAT" and "not ok WHAT" lines. Structures, fields, codes and functions are taken from the headers
themselves, so a new one is held to the rules of gradcomp/abi.h without being named here."""
import os
import re
import subprocess
import sys

SRC, TMP, CC = sys.argv[1:4]
GOLDEN = os.path.join(SRC, "tests/golden/abi")
# ABI 3 has another table of operators; what those before had lies beside it, under names of its own.
V1 = os.path.join(SRC, "runtime/plugin/operators_v1.h")
V1_LAST = 2
NOW_V1 = {"gradcomp_host": {"operators": "operators_v1", "operators_on": "operators_on_v1"},
          "gradcomp_work": {"operators": "operators_v1"}}


def result(wrong, what):
    print(("not ok " if wrong else "ok ") + what)
    for line in wrong:
        print("# " + line)


class Headers:
    """What the headers of one folder declare."""

    def __init__(self, folder, today=False):
        self.folder, self.structs, self.codes, self.functions, self.today = folder, {}, [], [], today
        here = os.path.join(folder, "gradcomp")
        self.names = sorted(h for h in os.listdir(here) if h.endswith(".h") and h != "sdk.h")
        for name in self.names:
            with open(os.path.join(here, name), encoding="utf-8") as f:
                text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
            for listed in re.findall(r'^#include "(gradcomp/\w+\.def)"$', text, re.M):
                text = text.replace('#include "%s"' % listed, self.entries(os.path.join(folder, listed)))
            for struct, body in re.findall(r"^(?:typedef )?struct (gradcomp_\w+) \{\n(.*?)^\}", text, re.S | re.M):
                self.structs[struct] = self.fields(body)
            for body in re.findall(r"^typedef enum \w+ \{(.*?)\}", text, re.S | re.M):
                self.codes += re.findall(r"\b(GRADCOMP_\w+)\s*(?==|,|$)", body, re.M)
            self.codes += re.findall(r"^#define (GRADCOMP_\w+) \(?[0-9]", text, re.M)
            self.functions += re.findall(r"^GRADCOMP_EXPORT [^;(]*?\b(gradcomp_\w+)\(", text, re.M)

    @staticmethod
    def entries(path):
        """The fields that operators.def makes, as text."""
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        return "".join("void (*%s)(void);\n" % (a or b) for a, b in re.findall(
            r"^GRADCOMP_OPERATOR\([^,]*, (\w+),|^GRADCOMP_(?:SCRATCH|SIZE)\((\w+),", text, re.M))

    @staticmethod
    def fields(body):
        out = []
        for line in body.split(";"):
            pointer = re.search(r"\(\*(\w+)\)\s*\(", line)
            names = [pointer.group(1)] if pointer else re.findall(r"(\w+)(?:\[[^\]]*\])*\s*(?:,|$)", line.strip())
            out += names
        return out

    def sized(self):
        """Those that say how long they are."""
        return [s for s, f in self.structs.items() if f[:1] in (["struct_size"], ["info"])]

    def run(self, lines):
        source, program = os.path.join(TMP, "layout.c"), os.path.join(TMP, "layout")
        v1 = '#include "%s"\n' % V1 if self.today else ""
        with open(source, "w", encoding="utf-8") as f:
            f.write("#include <stdio.h>\n#include <stddef.h>\n")
            f.writelines('#include "gradcomp/%s"\n' % n for n in self.names)
            f.write(v1)
            f.write("int main(void)\n{\n" + "\n".join(lines) + "\n\treturn 0;\n}\n")
        subprocess.run([CC, "-w", "-I", self.folder, "-o", program, source], check=True)
        return [line.split() for line in subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()]

    def layout(self):
        """{struct: (bytes, [(field, offset, bytes)])}"""
        lines = []
        for s, fields in self.structs.items():
            lines.append('printf("%s . 0 %%zu\\n", sizeof(struct %s));' % (s, s))
            lines += ['printf("%s %s %%zu %%zu\\n", offsetof(struct %s, %s), sizeof(((struct %s *)0)->%s));' % (s, f, s, f, s, f)
                      for f in fields]
        out = {}
        for s, f, at, size in self.run(lines):
            if f == ".":
                out[s] = (int(size), [])
            else:
                out[s][1].append((f, int(at), int(size)))
        return out

    def abi(self):
        return self.values(["GRADCOMP_ABI_VERSION"])["GRADCOMP_ABI_VERSION"]

    def values(self, of):
        return dict((n, int(v)) for n, v in self.run(['printf("%s %%lld\\n", (long long)%s);' % (c, c) for c in of]))


def moved(struct, old, new, renamed):
    """What is at another place, or has another length. Reserved words may have become fields."""
    (old_bytes, old_fields), (new_bytes, new_fields) = old, new
    places = {(at, size) for _, at, size in new_fields}
    wrong = []
    named = {field: (at, size) for field, at, size in new_fields}
    for field, at, size in old_fields:
        field = renamed.get(field, field)
        if not field.startswith("reserved"):
            # Some were renamed: then something as long is there.
            if named.get(field, (at, size)) != (at, size) or (at, size) not in places:
                wrong.append("%s.%s was %d bytes from %d on" % (struct, field, size, at))
        elif any(a < at + size < a + n or a < at < a + n for _, a, n in new_fields):
            wrong.append("%s.%s: a field lies across its end" % (struct, field))
    grows = old_fields[0][0] in ("struct_size", "info")
    if new_bytes != old_bytes if not grows else new_bytes < old_bytes:
        wrong.append("%s was %d bytes, is %d" % (struct, old_bytes, new_bytes))
    return wrong


def abidiff(old, new):
    """Types and functions as libabigail sees them: compiled, for what text does not show, such as types of arguments."""
    objects, renames = [], NOW_V1 if old.abi() <= V1_LAST else {}
    for h, name in ((old, "old"), (new, "new")):
        source, so = os.path.join(TMP, name + ".c"), os.path.join(TMP, name + ".so")
        with open(source, "w", encoding="utf-8") as f:
            f.writelines('#include "gradcomp/%s"\n' % n for n in h.names)
            if h.today and renames:
                f.write('#include "%s"\n' % V1)
            # Fields by themselves, too: what has grown at its end is passed over as a whole.
            f.writelines("struct %s *type_%s;\n" % (s, s) for s in old.structs if s in new.structs)
            for s in old.structs:
                now = s + "_v1" if renames and s == "gradcomp_operators" else s
                f.writelines("__typeof__(((struct %s *)0)->%s) *field_%s_%s;\n" % (now if h.today else s, m, s, m)
                             for m in old.structs[s] if m in new.structs.get(now, ()) and not m.startswith("reserved")
                             and m not in renames.get(s, ()))
            f.writelines("__typeof__(&%s) function_%s;\n" % (s, s) for s in h.functions if s in new.functions)
        subprocess.run([CC, "-w", "-g", "-shared", "-fPIC", "-I", h.folder, "-o", so, source], check=True)
        objects.append(so)
    passed_over = [os.path.join(GOLDEN, "abidiff.suppress")] + [os.path.join(GOLDEN, "abidiff_v1.suppress")] * bool(renames)
    return subprocess.run(["abidiff", "--no-added-syms", *(a for p in passed_over for a in ("--suppressions", p)), *objects],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def main():
    today = Headers(os.path.join(SRC, "include"), today=True)
    now = today.layout()
    with open(os.path.join(SRC, "runtime/base/first_sizes.h"), encoding="utf-8") as f:
        first = {s: int(n) for s, n in re.findall(r"FIRST_SIZE_(gradcomp_\w+) = (\d+)", f.read())}
    least = {}
    for release in sorted(os.listdir(GOLDEN)):
        folder = os.path.join(GOLDEN, release)
        if not os.path.isdir(folder):
            continue
        old = Headers(folder)
        was, renames = old.layout(), {}
        if old.abi() <= V1_LAST:
            # Their operators are compared with those that the host has for them.
            renames = NOW_V1
            today.structs["gradcomp_operators_v1"] = old.structs["gradcomp_operators"]
            now["gradcomp_operators_v1"] = today.layout()["gradcomp_operators_v1"]
            was["gradcomp_operators_v1"] = was.pop("gradcomp_operators")
        for s in old.sized():
            if s in was:
                least[s] = min(least.get(s, 1 << 30), was[s][0])
        result([s + " is gone" for s in was if s not in now], "%s: every structure is still there" % release)
        result([w for s in was if s in now for w in moved(s, was[s], now[s], renames.get(s, {}))],
               "%s: fields of %d structures lie where they were" % (release, len(was)))
        common = [c for c in old.codes if c in today.codes and c != "GRADCOMP_ABI_VERSION"]
        a, b = old.values(common), today.values(common)
        result(["%s was %d, is %d" % (c, a[c], b[c]) for c in common if a[c] != b[c]],
               "%s: %d codes are what they were" % (release, len(common)))
        if "abidiff" in sys.argv:
            said = abidiff(old, today)
            result(said.stdout.splitlines() if said.returncode else [], "%s: abidiff finds nothing else" % release)
    today.structs.pop("gradcomp_operators_v1", None)
    result(["%s is %d, its first release had %d" % (s, first.get(s, 0), least[s]) for s in least if first.get(s) != least[s]]
           + ["%s: write %d, its length today, into first_sizes.h" % (s, now[s][0]) for s in today.sized() if s not in first],
           "first_sizes.h has the first length of all %d structures that grow" % len(today.sized()))


main()
