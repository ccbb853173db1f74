"""Small templates, a few for each part of the language. See make_template_fixtures.py."""

VARIABLES = {
    "n": None, "t": True, "f": False, "i": 7, "neg": -7, "x": 2.5, "big": 18446744073709551615,
    "s": "Hello World", "u": "ÄÖ straße 你好 ﬁ", "empty": "", "pad": "  a b  c \n",
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "mixed": [1, "a", None, True, 1.5, [1], {"k": 1}],
    "d": {"b": 1, "a": 2, "C": 3}, "nested": {"p": {"q": [{"r": "deep"}]}, "items": [1], "get": 5},
    "people": [{"name": "Bo", "age": 30, "tags": ["x"]}, {"name": "al", "age": 25, "tags": []},
               {"name": "Cy", "age": 30, "tags": ["y", "z"]}],
    "esc": "<a href=\"x\">&'</a>", "lines": "one\ntwo\n\nthree",
}

EXPRESSIONS = r"""
i + 2 | i - 10 | i * 3 | i / 2 | 8 / 2 | i // 2 | neg // 2 | neg % 3 | i % -3 | 2 ** 10 | 2 ** -1 | -2 ** 2
2 ** 3 ** 2 | 7.5 // 2 | -7.5 // 2 | 7.5 % 2 | -7.5 % 2 | 1 / 3 | 1e16 | 1e15 | 1e-5 | 0.0001 | 1.0 | 100.0 | 1.5e300 * 1e10
0.1 + 0.2 | 1_000 | 0x1F | 0b101 | 0o17 | 1e2 | i / 0 | i // 0 | i % 0 | 1.0 // 0 | -x | +x | -t | +t | - n | t + t
'a' + 'b' | 'a' + 1 | 1 + 'a' | 'a' * 3 | 3 * 'ab' | 'a' * -1 | [1] * 2 | [1] + [2] | (1,) + (2,) | [1] + (2,) | l + n
s ~ i ~ x ~ n ~ t | 'a' 'b' "c" | 'it\'s' | "q\"q" | 'a\nb\tc\\d' | '\x41\u00e9\U0001F600' | '\q' | '\101' | 'multi
1 == 1.0 | 1 == true | '1' == 1 | n == none | l == [3,1,2] | (1,2) == [1,2] | d == {'a': 2, 'b': 1, 'C': 3} | missing == missing2
1 < 2 < 3 | 1 < 3 < 2 | 3 > 2 >= 2 | 'a' < 'b' | 'a' < 1 | [1,2] < [1,3] | n < 1 | 1 != 2 | missing < 1 | true < 2 | big > i | big == big | big
1 in l | 9 in l | 9 not in l | 'a' in d | 'ell' in s | 1 in s | 'x' in n | 'a' in missing | 1.0 in l | not 1 in l | [1] in mixed
t and i | f and i | f or i | i or f | not t | not not i | n or 'dflt' | '' or [] | t and f or i
'a' if t else 'b' | 'a' if f else 'b' | 'a' if f | ('a' if f) is undefined | 'a' if t else 'b' if f else 'c'
s[0] | s[-1] | s[99] | s[1:3] | s[:-1] | s[::-1] | s[::2] | s[-3:] | s[5:2] | u[3:6] | u[::-1] | l[0] | l[-1] | l[9] | l[1:] | l[::-1] | l[5:] | l['a']
d['a'] | d.a | d.zz | d['zz'] | d.zz.y | nested.p.q[0].r | nested['items'] | nested.items() | nested.get('x', 3) | nested['get'] | l.0 | l[::0] | (1,2,3)[1] | (1,2,3)[:2]
missing | missing.x | missing[0] | missing() | missing + 1 | missing ~ 'a' | -missing | n.x | i.x | n[0] | s.nope | s._private | l.append(1) | d.update({}) | d.pop('a') | l.append | d.clear() | l.sort()
[] | {} | () | [1, 'a', n, t, x] | (1,) | (1, 2) | {'a': 1, 'b': [1, 2]} | {1: 2, n: 3, (1,2): 4} | {'a': 1, 'a': 2} | {[]: 1} | mixed | d | ['it\'s', "q\"", 'both\'"', 'tab\t', 'é\u200b\x07'] | [1,] | {'a':1,}
i, x | 1, | [1.0, 1e20, 1e-7, -0.0] | 1.0 | -0.0 | [none] | True | None | false | none is none
s|upper | s|lower | u|upper | u|lower | u|title | u|capitalize | s|capitalize | 'hello wOrld-foo (bar) [baz] it\'s'|title | 5|upper | n|upper | missing|upper
s|trim | pad|trim | pad|trim('a \n') | 'xxaxx'|trim('x') | 5|trim | s|replace('o', '0') | s|replace('o', '0', 1) | s|replace('', '-') | s|replace('l', '') | 121|replace(1, 'x') | s|replace('a')
s|length | u|length | l|length | d|length | n|length | i|length | missing|length | s|count | l|first | l|last | []|first | []|last | s|first | s|last | d|first | d|last | missing|first
s|list | d|list | missing|list | i|list | l|join | l|join(', ') | l|join(1) | people|join(', ', attribute='name') | mixed|join('|') | s|join('-') | missing|join(',') | l|reverse|list | s|reverse | u|reverse | i|reverse
l|sort | l|sort(reverse=true) | words|sort | words|sort(case_sensitive=true) | people|sort(attribute='age')|map(attribute='name')|join(',') | people|sort(attribute='age,name')|map(attribute='name')|join(',') | people|sort(attribute='age', reverse=true)|map(attribute='name')|list | mixed|sort | words|sort(true) | d|sort
l|sum | []|sum | people|sum(attribute='age') | people|sum('age', 10) | words|sum | l|min | l|max | words|min | words|max | words|max(case_sensitive=true) | []|max | people|max(attribute='age') | mixed|min
words|unique|list | words|unique(case_sensitive=true)|list | [1, 1.0, true, 2]|unique|list | people|unique(attribute='age')|map(attribute='name')|list | [[1],[1]]|unique|list
words|map('upper')|list | people|map(attribute='name')|list | people|map(attribute='tags.0')|list | people|map(attribute='tags.0', default='-')|list | people|map(attribute='zz', default=0)|list | l|map('nope')|list | words|map('replace', 'a', 'b')|list | missing|map('upper')|list | people|map('attr', 'name')|list
l|select|list | [0, 1, '', n]|select|list | l|select('odd')|list | l|select('gt', 1)|list | l|select('>', 1)|list | l|reject('odd')|list | [0,1]|reject|list | l|select('nope')|list | people|selectattr('age', 'equalto', 30)|map(attribute='name')|list | people|selectattr('tags')|map(attribute='name')|list | people|rejectattr('tags')|map(attribute='name')|list | people|rejectattr('age', 'gt', 26)|list|length | people|selectattr('zz', 'defined')|list | people|selectattr()|list
d|dictsort | d|dictsort(true) | d|dictsort(false, 'value') | d|dictsort(reverse=true) | d|dictsort(by='nope') | l|dictsort | d|items|list | missing|items|list | d.items()|list | d.keys()|list | d.values()|list | d.items() | d.keys() | d.values() | d.items()|first | d.keys()[0]
people|groupby('age')|map('first')|list | people|groupby('age')|map(attribute='grouper')|list | people|groupby('age')|map(attribute='list')|map('length')|list | people|groupby('name')|map('first')|list | [{'a': 'X'}, {'a': 'x'}]|groupby('a') | people|groupby('zz', default='?')|map('first')|list
l|batch(2)|list | l|batch(2, '-')|list | l|batch(0)|list | l|slice(2)|list | l|slice(2, '-')|list | l|slice(5)|list | l|slice(0)|list | []|batch(2)|list
missing|default('d') | n|default('d') | n|default('d', true) | ''|default('d', boolean=true) | missing|default | missing|d(1) | f|default('x') | d.zz|default(5) | missing.x|default(1)
'42'|int | '4x'|int | '4.9'|int | x|int | '0x1f'|int(0, 16) | 'ff'|int(base=16) | n|int | n|int(5) | missing|int | t|int | ' 12 '|int | '1_000'|int | ''|int | '-7'|int | 'inf'|int(3) | '99999999999999999999'|int | l|int(9) | 1e300|int|string|length
'4.5'|float | '4x'|float | n|float(1.5) | i|float | 'inf'|float | '-1e3'|float | 'nan'|float | ' 1.5 '|float | t|float | missing|float | '1_0.5'|float | ''|float
2.5|round | 3.5|round | -2.5|round | 2.675|round(2) | 42.55|round(1, 'floor') | 42.51|round(0, 'ceil') | i|round | 1234.5|round(-2) | 1250|round(-2) | 'a'|round | 42.5|round(method='nope') | 3.14159|round(3) | 1e20|round(2)
neg|abs | x|abs | 'a'|abs | t|abs | s|string | i|string | n|string | missing|string | l|string | s|wordcount | u|wordcount | 'a-b c_d  e'|wordcount | s|center(21) | s|center(20) | s|center(3) | 'ab'|center(5)|length
esc|e | esc|escape | esc|safe | esc|safe|e | esc|e|e | esc|forceescape | esc|e|forceescape | esc|safe ~ '<' | (esc|safe) + '<' | '<' + (esc|safe) | (esc|safe)|upper + '<' | esc|safe is escaped | esc is escaped | [esc|safe] | 5|e | (esc|safe) * 2 + '<'
lines|indent | lines|indent(2) | lines|indent(2, true) | lines|indent(2, blank=true) | lines|indent('> ', first=true) | ''|indent | 'a\n'|indent(2) | lines|indent(width=1, first=true, blank=true)
'%s and %d'|format('a', 3) | '%s'|format(l) | '%(a)s %(b)05.1f'|format(a=1, b=2.25) | '%d'|format('a') | '%s'|format | '%5s|%-5s|' % ('a', 'b') | '%05d %+d %x %X %o' % (42, 42, 255, 255, 8) | '%.2f %e %g' % (3.14159, 12345.678, 0.00001) | '%%' % () | '%s' % (1, 2) | '%s %s' % 1 | '%r' % 'a' | '%.2s' % 'abc' | 'abc' % () | '%*d' % (5, 3) | '%c' % 'x' | '%s' % n | '%-6.2f|' % 2.5 | '%i' % 3.9 | '%s' % (l,) | 'a' % d | '%q' % 1
'{} {}'.format(1, 'a') | '{1} {0}'.format(1, 2) | '{a} {b[0]} {c.a}'.format(a=1, b=l, c=d) | '{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c') | '{:05d} {:+d} {:x} {:#x} {:b} {:,}'.format(42, 42, 255, 255, 5, 1234567) | '{:.2f} {:e} {:g} {:%}'.format(3.14159, 12345.678, 1e-5, 0.256) | '{{}}'.format() | '{'.format(1) | '{} {0}'.format(1) | '{}'.format() | '{!r:>5}'.format('a') | '{:*^9}'.format('mid') | '{:{w}}'.format('a', w=4) | '{:d}'.format('a') | '{:s}'.format(1) | '{}'.format(l) | '{:5}'.format(l) | '{:.3}'.format('abcdef') | '{:=+6d}'.format(3) | '{:06.2f}'.format(-1.5) | '{:10.3f}|'.format(2.0) | '{:_}'.format(1000000) | '{:5}|'.format(t) | '{:d}'.format(t) | '{0.x}'.format(d) | '{:,.2f}'.format(1234567.891)
l|tojson | d|tojson | mixed|tojson | esc|tojson | u|tojson | u|tojson(ensure_ascii=true) | '😀'|tojson(true) | d|tojson(indent=2) | mixed|tojson(indent=1) | d|tojson(separators=(',', ':')) | d|tojson(sort_keys=true) | d|tojson(indent=2, separators=(',', ': '), sort_keys=true) | []|tojson(indent=2) | {}|tojson | n|tojson | x|tojson | 1e20|tojson | 1e16|tojson | missing|tojson | [missing]|tojson | {1: 2, n: 3, t: 4, 1.5: 6}|tojson | (1, 2)|tojson | range(3)|tojson | d.items()|tojson | '\x00\x1f\x7f\u2028"\\/'|tojson | {(1,2): 1}|tojson | 'inf'|float|tojson | d|tojson(indent='--') | [[], {}, [1]]|tojson(indent=2) | big|tojson | namespace(a=1)|tojson | [d|tojson] | d|tojson(indent=0)
s|truncate(5) | s|truncate(5, true) | s|truncate(8, false, '..', 0) | s|truncate(9, leeway=0) | s|truncate(2) | s|truncate | u|truncate(6, true, '', 0) | 'a b/c?é&d'|urlencode | s|attr('upper') is callable | d|attr('a') is undefined | s|nope | s|upper(1) | s|trim(1, 2) | s|trim(nope=1)
i is number | x is number | t is number | n is number | i is integer | t is integer | x is integer | x is float | i is float | t is boolean | i is boolean | s is string | i is string | d is mapping | l is mapping | l is iterable | s is iterable | i is iterable | d is iterable | missing is iterable | l is sequence | s is sequence | d is sequence | i is sequence | n is sequence | missing is sequence | d.items() is sequence | (l|map('string')) is sequence | range(2) is sequence | range(2) is iterable
n is none | missing is none | missing is defined | missing is undefined | n is defined | s is not defined | d.a is defined | d.zz is defined | d.zz is undefined | t is true | i is true | f is false | n is false | 1 is true | i is odd | i is even | 'a' is odd | x is even | i is divisibleby 7 | i is divisibleby(2) | i is divisibleby 0 | i is eq 7 | i is equalto(7) | i is ne 7 | i is gt 3 | i is ge 7 | i is lt 3 | i is le 7 | i is greaterthan 3 | i is lessthan 3 | 'a' is gt 1
1 is in l | 9 is in(l) | 9 is not in l | 'a' is in 'abc' | n is sameas none | t is sameas true | 1 is sameas true | l is sameas l | l is sameas [3,1,2] | 'A' is upper | 'a' is upper | 'a' is lower | '1' is lower | i is upper | range is callable | s is callable | s.upper is callable | missing is callable | 'upper' is filter | 'nope' is filter | 'odd' is test | s is nope | not n is none | n is not none and t | i is defined is true | i == 7 is true
s.split() | s.split('o') | s.split('o', 1) | s.split('l') | pad.split() | pad.split(' ') | pad.split(none, 1) | ''.split() | ''.split('a') | s.split('') | s.rsplit('o', 1) | s.rsplit('l', 1) | 'a b c d'.rsplit(none, 2) | 'a b c d'.split(none, 2) | 'aXbXc'.split(sep='X', maxsplit=1) | s.split(1) | lines.splitlines() | lines.splitlines(true) | 'a\r\nb\rc\u2028d'.splitlines() | ''.splitlines() | ' a b '.split(none, 0) | ' a b '.rsplit(none, 0)
pad.strip() | pad.lstrip() | pad.rstrip() | 'xyxaxy'.strip('xy') | 'xxa'.lstrip('x') | 'axx'.rstrip('x') | '\u00a0a\u3000'.strip() | s.strip(none) | s.strip(1) | 'é'.strip('é') | s.upper() | s.lower() | s.title() | 'they\'re bill\'s'.title() | s.capitalize() | s.swapcase() | 'ΑΣ ΟΔΟΣ Σ'.lower() | 'ß'.upper() | 'ǆ'.title() | 'ﬁx'.capitalize() | 'Straße'.casefold()
s.startswith('He') | s.startswith(('x', 'H')) | s.startswith('ell', 1) | s.startswith(['H']) | s.endswith('ld') | s.endswith(('x', 'ld')) | s.endswith('l', 0, 3) | s.startswith(1) | s.startswith('') | s.find('o') | s.find('z') | s.find('o', 5) | s.rfind('o') | s.index('o') | s.index('z') | s.rindex('l') | u.find('你') | s.count('l') | s.count('') | s.count('l', 4) | 'aaaa'.count('aa') | s.find('', 99)
s.replace('l', 'L') | s.replace('l', 'L', 2) | s.replace('l') | s.replace('', '.') | ', '.join(words) | ', '.join(l) | ','.join('abc') | ''.join([]) | s.isdigit() | '12'.isdigit() | '²'.isdigit() | '²'.isdecimal() | '½'.isnumeric() | ''.isdigit() | 'ab'.isalpha() | 'a1'.isalnum() | ' \n'.isspace() | 'AB'.isupper() | 'ab1'.islower() | 'Ab Cd'.istitle() | 'é'.isascii() | '٣'.isdigit()
'7'.zfill(3) | '-7'.zfill(4) | 'a'.ljust(3) ~ '|' | 'a'.rjust(3, '.') | 'ab'.center(5, '*') | 'abc'.center(6, '*') | 'abc'.center(7, '*') | 'a'.ljust(3, 'xx') | 'a=b=c'.partition('=') | 'a=b=c'.rpartition('=') | 'abc'.partition('x') | 'abc'.rpartition('x') | 'abc'.removeprefix('a') | 'abc'.removesuffix('c') | 'abc'.removeprefix('z') | 'a'.partition('')
d.get('a') | d.get('zz') | d.get('zz', 1) | d.get() | d.get([]) | l.index(1) | l.index(9) | l.count(1) | (1, 1).count(1) | (1, 2).index(2) | l.copy() | d.copy() | x.is_integer() | 2.0.is_integer() | d.keys()|sort | 'a' in d.keys() | 1 in d.values() | ('a', 2) in d.items() | d.items()|length
range(3) | range(3)|list | range(1, 4)|list | range(5, 0, -2)|list | range(3)[1] | range(3)|length | range(0) | range(1, 10, 3) | range(5, 0, -1) | range(3)|sum | 2 in range(3) | range(100001) | range(1.5) | range() | range(1, 2, 0) | range(3)[::-1]|list | range(9223372036854775807)
dict(a=1, b=2) | dict([('a', 1), ('b', 2)]) | dict(d, z=1) | dict() | dict(1) | namespace(a=1).a | namespace(a=1).b is defined | namespace({'q': 1}).q | cycler('a', 'b').next() | joiner('|')() ~ 'x' | strftime_now('%Y-%m-%d %B %d, %A %j %H:%M') | strftime_now('') | raise_exception('no') | raise_exception()
(1, 2)|first | (l|map('string')) is defined | [1, 2, 3][-2:] | {'a': {'b': 1}}.a.b | {'a': 1}['a'] | {'a': 1}.b | 'abc'[1] | 'abc'['upper']() | [[1, 2], [3]]|sum(start=[]) | {'a': 1, **d} | [1, *l] | i if i else n | l[i] | l[t] | l[1.0] | l[n:2] | l['0'] | s[t] | d[n] | d[l] | d[missing] | nested|tojson
foo( | 1 + | [1, 2 | {'a' 1} | s| | s|1 | 'abc | a b | i is | not | () | , | i = 1 | 1..2 | i.1.2 | ] | $ | a ? b | i === 1 | !i | lambda: 1 | i && t | 5 in | {% x %} | s|upper() | s|upper()|lower | s . upper ( ) | s [ 0 ] | 007 | 1__0 | 1_ | 'a' is string and 'b' is string
range(*[1, 4])|list | range(*l)|list | dict(**d) | dict(**l) | dict(*l) | '{a}'.format(**{'a': 1}) | s.split(*['o'], maxsplit=1) | s.split(maxsplit=1, *['o']) | range(1, 2,)|list
"""

STATEMENTS = [
    "{% if i > 5 %}big{% elif i > 3 %}mid{% else %}small{% endif %}",
    "{% if f %}a{% elif n %}b{% elif t %}c{% endif %}", "{% if %}{% endif %}", "{% if t %}",
    "{% if t if f else t %}x{% endif %}", "{% endif %}", "{% else %}", "{% unknown %}", "{%%}", "{{}}",
    "{% for a in l %}{{ a }},{% endfor %}", "{% for a in [] %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in l %}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for c in 'häß' %}[{{ c }}]{% endfor %}", "{% for a in i %}{% endfor %}", "{% for a in missing %}x{% else %}e{% endfor %}",
    "{% for a in n %}{% endfor %}", "{% for a in l if a > 1 %}{{ loop.index }}/{{ loop.length }}:{{ a }} {% endfor %}",
    "{% for a in l if a > 9 %}x{% else %}none{% endfor %}",
    "{% for a in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for a in words %}{{ loop.previtem }}<{{ a }}>{{ loop.nextitem }} {% endfor %}",
    "{% for a in words %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for a in words %}{{ loop.cycle('x', 'y') }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for a in [1,1,2,2,1] %}{{ loop.changed(a) }} {% endfor %}", "{% for a in l %}{{ loop.nope }}{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in [] %}{% break %}{% else %}e{% endfor %}", "{% break %}", "{% continue %}",
    "{% for a in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for a in l %}{% for b in l %}{% if b == 1 %}{% break %}{% endif %}{{ a }}{{ b }} {% endfor %}{% endfor %}",
    "{% for a in l %}{% for b in [1] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a in [[1,[2]],[3]] recursive %}{% if a is iterable %}({{ loop(a) }}){% else %}{{ a }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for a in [1] %}{{ loop([2]) }}{% endfor %}", "{% for a in range(3) %}{{ a }}{% endfor %}{{ a is defined }}",
    "{% for a in l %}{% endfor %}{{ loop }}", "{% for loop in l %}{% endfor %}x", "{% for a in (1, 2) %}{{ a }}{% endfor %}",
    "{% for a in 1, 2 %}{{ a }}{% endfor %}", "{% for a in l|sort(reverse=true) %}{{ a }}{% endfor %}",
    "{% for p in people %}{{ p.name }}:{% for t in p.tags %}{{ t }}{% else %}-{% endfor %};{% endfor %}",
    "{% set ns = namespace(seen=[]) %}{% for a in [1,2,1,3] if a not in ns.seen %}{% set ns.seen = ns.seen + [a] %}{{ a }}{% endfor %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = l %}", "{% set (a, b) = (1, 2) %}{{ a }}",
    "{% set a %}x{{ i }}y{% endset %}{{ a }}|{{ a is string }}", "{% set a | upper %}x{{ i }}y{% endset %}{{ a }}",
    "{% set a | trim | replace('x', 'z') %}  x  {% endset %}[{{ a }}]", "{% set true = 1 %}", "{% set a.b = 1 %}", "{% set n.x = 1 %}",
    "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{% set ns.b = 'n' %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}",
    "{% set ns = namespace() %}{% for a in l %}{% set ns.x = a %}{% endfor %}{{ ns.x }}", "{% set x = 1 %}{% for a in l %}{% set x = x + a %}{{ x }} {% endfor %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% for a in l %}{% if t %}{% set q = a %}{% endif %}{{ q }}{% endfor %}{{ q is defined }}",
    "{% set s = s ~ '!' %}{{ s }}", "{% set ns = namespace(a=1) %}{{ ns }}{% set ns.a.b = 1 %}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% macro m(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=5) }} {{ m() }} {{ m(b=1, a=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}",
    "{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m('x') }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}{{ x }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}", "{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(n) }}", "{% macro m(a, b=1) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ i }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% call 5 %}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro m() %}  text  {% endmacro %}[{{ m()|trim }}]{{ m() is string }}", "{% macro m(x) %}{% set x = x ~ 1 %}{{ x }}{% endmacro %}{{ m('a') }}{{ x }}", "{{ m() }}{% macro m() %}{% endmacro %}",
    "{% for a in l %}{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{% endfor %}", "{% set ns = namespace() %}{% macro g() %}g{% endmacro %}{% set ns.g = g %}{{ ns.g() }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m(a) -%} {{ a }} {%- endmacro %}[{{ m(1) }}]",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aXa{% endfilter %}", "{% filter nope %}x{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}",
    "{% generation %}x{% set gen = 1 %}{{ gen }}{% endgeneration %}{{ gen is defined }}", "{% for a in l %}{% generation %}{{ a }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% raw %}{{ x }}{% endraw %}", "{%- raw -%}  {% if %} {%- endraw -%}  z", "{% raw %}\n a\n{% endraw %}\nb", "a {# comment #} b", "a {#- c -#} b", "{# multi\nline #}\nx", "{# open",
    "{% print 1, 'a' %}", "{% print %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}",
    "a\n{% if t %}\nb\n{% endif %}\nc", "  {% if t %}  \n  b\n  {% endif %}  \nc\n", "x {% if t %} y {% endif %} z", "x  {%- if t -%}  y  {%- endif -%}  z", "x  {{- i -}}  z", "x\n\n  {{- i }}\n\n y",
    "  {%+ if t %}a{% endif %}", "{% if t +%}\na{% endif %}", "a\n  {# c #}\nb", "a\n  {#- c #}\nb", "a\n\n", "a\n", "\n", "", "a\r\nb\rc", "\t{% set a = 1 %}\n{{ a }}", "  {{ i }}\n  {{ i }}", "{{ i }}\n{{ i }}\n",
    "{% if t %}\n\n\na{% endif %}", "a{% if t %}\n  b{% endif %}", "  x {% if t %}y{% endif %}", "{{ '{{' }}", "{{ '%}' }}", "{% set a = '%}' %}{{ a }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}}}",
    "{{ i -}}\n\n x", "{{ 1 }}{{ 2 }}", "{ {x} }", "{{ \"}}\" }}", "}} %} #}", "{", "{{ i", "{% if t", "{{ 'a", "{% set a = {'x': [1, 2]} %}{{ a.x[1] }}", "{{-1}}", "{{- -1}}", "{{+1}}", "a{{ i|string -}} b",
    "{%- for a in l -%}\n  {{ a }}\n{%- endfor -%}", "{% for a in l -%}\n  {{ a }}\n{% endfor %}", "{% for a in l %}\n  {{ a }}\n{% endfor %}\nend", "\u00a0{%- if t %}a{% endif %}",
    "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select('odd') %}{{ 3 in g }}{{ g|list }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}",
    "{% set j = joiner() %}{% for a in l %}{{ j() }}{{ a }}{% endfor %}", "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|length }} {% endfor %}", "{% for age, who in people|groupby('age') %}{{ age }}{{ who|map(attribute='name')|join }} {% endfor %}",
    "{% for a in l|batch(2) %}{{ a }}{% endfor %}", "{{ l|map('string') is string }}", "{% set x = l|reverse %}{{ x|first }}{{ x|list }}", "{% if l|select('gt', 99) %}truthy{% endif %}", "{{ (l|select('odd'))|length }}",
    "{{ i }}{# a #}{{ x }}{#- b -#} c", "{% if not t %}a{% endif %}{% if t and not f %}b{% endif %}", "{% set a = [] %}{% set b = a + [1] %}{{ a }}{{ b }}", "{% for i in range(3) %}{{ i }}{% endfor %}{{ i }}",
    "{% set x = 'a' if f %}[{{ x }}]{{ x is defined }}", "{{ undefined_fn('a') }}", "{{ d.items }}x" if False else "{{ d.items()|map('first')|join }}", "{% do l.append(1) %}", "{% trans %}x{% endtrans %}", "{% autoescape true %}{{ esc }}{% endautoescape %}" if False else "{% endfor %}",
    "{% set _ = 1 %}{{ _ }}", "{% set ünï = 1 %}{{ ünï }}", "{{ loop is defined }}", "{{ self is defined }}" if False else "{{ caller is defined }}", "{% if n is none %}{{ n }}{% endif %}",
]


def cases():
    for line in EXPRESSIONS.strip().splitlines():
        # A bar with spaces around it separates cases; a filter's bar is written without spaces.
        for expression in line.split(" | "):
            yield "{{ " + expression + " }}"
    for statement in STATEMENTS:
        yield statement
