"""What the tiny checkpoint says, and the words its tokenizer knows.

The weights make the next token depend on the last one, so a token may stand only once in all of the texts below; a
token is a word with the space or line break before it and the punctuation after it.
"""

from __future__ import annotations

REASONING = "I read the request, weigh what it needs and choose one clear step."
"""What follows `<think>`; `</think>` ends it."""

ANSWER = "This answer comes from a tiny Laguna that Slipway builds itself: real attention, routed experts, honest arithmetic."
"""What follows `</think>`; `</assistant>` ends it."""

TOOL_NAME, TOOL_KEY, TOOL_VALUE = "get_weather", "city", "Lisbon"
"""The one call that follows `</think>` when the prompt says that tools are at hand."""

LOG = """
Morning tide lifts oak hulls above gravel.
Crews haul rope, check fenders, wind winches while grey gulls circle.
Each plank carries old names; every rivet remembers hammers.
Before noon pilots chart safe channels between red buoys.
Greasy chains rattle, brakes hiss, then twelve keels slide toward open water.
Waves reply with white foam, spray, laughter.
Someone counts knots; others measure depth, drift, swell height.
Further out, lighthouse beams sweep across dark shoals.
Cooks stir soup, slice bread, pour coffee to warm cold hands.
Night falls softly over slate roofs; lanterns glow along quiet quays.
Ropes creak, moorings tighten, stars appear.
Tomorrow brings fresh cargo: timber, copper wire, salt, barley, wool.
Clerks stamp papers, merchants argue prices, children chase hoops.
A bell rings twice.
Fog drifts inland, hiding masts, muffling voices.
Sailors whistle tunes learned beyond southern capes.
Carpenters plane curved ribs until edges shine.
Smiths forge bolts under orange sparks.
Riggers climb high, splice worn stays, mend torn canvas.
Painters brush black tar below waterlines.
Apprentices gather shavings into tidy heaps.
Masters draw lines, test joints, nod approval.
Launch day arrives; crowds press near flags, drums, ribbons.
Wedges loosen, timbers groan, blocks fall aside.
Slowly she moves.
Faster now; friction smokes beneath greased ways.
Bow meets harbour, splash rises, cheering spreads.
Tugs turn her gently round.
Work begins again: sweeping floors, stacking boards, sharpening tools, pricing elm for another hull."""
"""What follows `</assistant>`, over and over: text of any length for a benchmark that ignores the end of a turn."""

COMMON_WORDS = """
able about accept access account action active actual adapt add address advance after against age agree ahead air all
allow almost alone already also always among amount an any anything apply area around array arrive article as ask asset
assign at attempt author average away back balance bank base basic batch be because become been begin behind being
believe benefit best better big bit block blue board body book both bottom box branch break bring broad brother budget
build building business but buy by cache call can capital card care case catch cause center central century certain
chance change character charge check child choice city claim class clean client close code cold collect college column
come command comment common community company compare complete computer concern condition connect consider contain
content context continue control copy correct cost could count country couple course cover create culture current
customer cut data database date day deal death decide decode deep default define degree deploy design detail develop
device did die difference different difficult digital direct discover do doctor does door double down draft drive drop
during each early east easy economy edge education effect effort eight either element else empty end energy engine
enough enter entire error especially even evening event ever every evidence exact example except exist expect
experience explain export express extra eye face fact fail fall false family far fast father feature feel few field
fight figure file fill final find finish fire first five fix flag flow focus follow food force foreign form forward
found four frame free friend front full function fund future game garden gate general generate get girl give glass go
goal good government great green group grow guess half hand handle happen hard has have he head health hear heart heat
help here high him his history hit hold home hope host hot hour house how however huge human hundred husband idea
identify if image imagine impact import important improve in include increase index indeed indicate individual industry
information input inside instead integer interest interface internal into is issue item its join just keep key kind
know label land language large last late later latency law lay lead learn least leave left legal length less let letter
level library life light like likely limit line link list listen little live load local lock long look lose loss lot
love low machine main maintain major make man manage many map market match material matter may maybe me mean memory
method middle might mile million mind minute miss mode model modern moment money month more most mother mouth move
much music must my name nation nature need network never new next nice night no node none nor normal north not note
nothing notice number object occur of off offer office often on once only onto operation option or order other our
output over own package page pair paper parameter parent part party pass past path pattern pay peace people per percent
perform period person phone physical pick piece place plan plant play point policy poor position possible power
practice prefill prepare present president pressure pretty prevent print private probably problem process produce
product program project prompt property protect prove provide public pull purpose push put quality query question
quick quite range rate rather reach react ready reason receive recent recipe recognize record reduce reflect region
relate remain remember remove render report represent require research resource respond response rest result return
revision right rise risk road role room root route router row rule run same sample save say scale school science score
screen search season second section security see seek seem select sell send sense sentence series serious serve server
service set seven several shard share short should shot show side sign similar simple since single sit site situation
six size skill small so social society soft software some song soon sort sound source south space speak special
specific speed spend sport spring stack staff stage stand standard start state statement status stay still stop store
story strategy stream street string strong structure student study stuff style subject success such suddenly suffer
suggest summer support sure surface system table take talk task teach team technology tell temperature ten tend term
text than thank their them theory there these they thing think third those though thought thousand threat three through
throughput throw time title to today together token too tool top total tough toward town track trade train transfer
travel treat tree trial trip trouble true trust truth try two type under understand unit until up update upon us use
user usually value various verify version very victim view visit voice wait walk wall want war warm was watch way we
wear week weight well were west when where whether which who whole whom whose why wide wife will win window wish
within without woman wonder word worker world worry would write wrong yard year yes yet you young your zero
"""
"""Everyday words, so that an ordinary prompt costs about one token a word."""

SPECIAL_TOKENS = {
    0: "〈|UNK|〉",
    1: "〈|CODE_START|〉",
    2: "〈|EOS|〉",
    3: "〈|CODE_END|〉",
    9: "〈|PAD|〉",
    12: "〈|MASK|〉",
}
"""Control tokens that no text shows. Begin and end of text share id 2, as in Laguna. Source: public configs of the
Laguna family, read 2026-11-30."""

MARKUP_TOKENS = {
    19: "<system>",
    20: "</system>",
    21: "<user>",
    22: "</user>",
    23: "<assistant>",
    24: "</assistant>",
    25: "<think>",
    26: "</think>",
    27: "<tool_call>",
    28: "</tool_call>",
    29: "<arg_key>",
    30: "</arg_key>",
    31: "<arg_value>",
    32: "</arg_value>",
    33: "<tool_response>",
    34: "</tool_response>",
    35: "<available_tools>",
    36: "</available_tools>",
    37: "<use_tools>",
}
"""Tags that parsers must see in the text, so they are single tokens but not special ones. Only 24 is Laguna's own id;
`<use_tools>` is ours: the template sets it where a tool call is due."""

FIRST_BYTE_TOKEN = 64
"""The ids below are kept for the two tables above."""

CHAT_TEMPLATE = r"""{%- set thinking = enable_thinking | default(false) -%}
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content is iterable and content is not mapping -%}
{%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- '〈|EOS|〉' -}}
{%- set told = namespace(system='', rest=messages) -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
{%- set told.system = text(messages[0].content) -%}
{%- set told.rest = messages[1:] -%}
{%- endif -%}
{%- if told.system or tools -%}
{{- '<system>' + told.system -}}
{%- if tools -%}
{{- '\n\nFunctions that you may call, one JSON signature a line:\n<available_tools>\n' -}}
{%- for tool in tools -%}{{- (tool.function if tool.function is defined else tool) | tojson + '\n' -}}{%- endfor -%}
{{- '</available_tools>\nWrite a call as <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>.' -}}
{%- endif -%}
{{- '</system>\n' -}}
{%- endif -%}
{%- for message in told.rest -%}
{%- if message.role == 'user' -%}
{{- '<user>' + text(message.content) + '</user>\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<tool_response>' + text(message.content) + '</tool_response>\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set reasoning = message.reasoning_content or message.reasoning or '' -%}
{{- '<assistant>' + ('<think>' + reasoning if reasoning else '') + '</think>' + text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{{- '<tool_call>' + function.name -}}
{%- if function.arguments is mapping -%}
{%- for key, value in function.arguments.items() -%}
{{- '<arg_key>' + key + '</arg_key><arg_value>' + (value if value is string else value | tojson) + '</arg_value>' -}}
{%- endfor -%}
{%- elif function.arguments -%}
{{- '<arg_key>arguments</arg_key><arg_value>' + function.arguments + '</arg_value>' -}}
{%- endif -%}
{{- '</tool_call>' -}}
{%- endfor -%}
{{- '</assistant>\n' -}}
{%- else -%}
{{- '<system>' + text(message.content) + '</system>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if tools and messages and messages[-1].role == 'user' -%}{{- '<use_tools>' -}}{%- endif -%}
{{- '<assistant>' + ('<think>' if thinking else '</think>') -}}
{%- endif -%}
"""
"""The chat template. Keys: `messages`, `tools`, `add_generation_prompt`, `enable_thinking` (default off)."""
