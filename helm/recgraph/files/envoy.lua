-- Keeps what the last resort needs once the body is gone: custom_response turns the POST into a GET without one.
-- A request's $.user.scene goes into the header x-recgraph-scene (percent-encoded), its $.request_id into X-Request-Id;
-- a body that has no request_id gets the header's, so that the answer, the decision record and the access log agree.
local MAX_ID_BYTES = 256
-- A worker serves all its connections from one thread, so the scan of a large or hostile body is bounded (some 5 ms).
-- What stands behind is not read: such a request gets the default scene's pool, and keeps its body.
local MAX_BYTES = 262144
local MAX_TOKENS = 20000

local function utf8_bytes(code)
  local floor, char = math.floor, string.char
  if code < 0x80 then return char(code) end
  if code < 0x800 then return char(0xC0 + floor(code / 0x40), 0x80 + code % 0x40) end
  if code < 0x10000 then
    return char(0xE0 + floor(code / 0x1000), 0x80 + floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
  end
  return char(0xF0 + floor(code / 0x40000), 0x80 + floor(code / 0x1000) % 0x40, 0x80 + floor(code / 0x40) % 0x40,
    0x80 + code % 0x40)
end

local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- One \uXXXX at a position, or a pair of them for what is beyond 0xFFFF: its text and the position behind.
local function unicode_escape(raw, at)
  local code = tonumber(raw:match("^\\u(%x%x%x%x)", at) or "", 16)
  if not code then return "", at + 2 end
  local low = code >= 0xD800 and code < 0xDC00 and raw:match("^\\u([dD][c-fC-F]%x%x)", at + 6)
  if not low then return utf8_bytes(code), at + 6 end
  return utf8_bytes(0x10000 + (code - 0xD800) * 0x400 + tonumber(low, 16) - 0xDC00), at + 12
end

-- The text of a JSON string without its quotes.
local function unescape(raw)
  local parts, at = {}, 1
  while true do
    local start = raw:find("\\", at, true)
    if not start then break end
    parts[#parts + 1] = raw:sub(at, start - 1)
    local char = raw:sub(start + 1, start + 1)
    if char == "u" then
      parts[#parts + 1], at = unicode_escape(raw, start)
    else
      parts[#parts + 1], at = ESCAPES[char] or char, start + 2
    end
  end
  return table.concat(parts) .. raw:sub(at)
end

-- The text of a string that may be an id or a key of ours; nothing for what is too long to be one.
local function short_text(body, start, stop)
  return stop - start <= 6 * MAX_ID_BYTES + 1 and unescape(body:sub(start + 1, stop - 1)) or ""
end

local function string_end(body, start)
  local at = start + 1
  while true do
    local stop = body:find('["\\]', at)
    if not stop or body:byte(stop) == 34 then return stop end
    at = stop + 2
  end
end

-- {scene=, request_id=, open=}: the two strings, and whether a request_id can be added (a whole object without one).
local function read_fields(body)
  local found, keys, depth, at = {}, {}, 0, 1
  local has_id = false
  if not body:find("^%s*{") then return found end
  for _ = 1, MAX_TOKENS do
    local start = body:find('[{}%[%]"]', at)
    if not start then
      found.open = depth == 0 and not has_id
      return found
    end
    local char = body:byte(start)
    at = start + 1
    if char == 123 or char == 91 then
      depth = depth + 1
      keys[depth] = nil
    elseif char == 125 or char == 93 then
      depth = depth - 1
    else
      local stop = string_end(body, start)
      if not stop then return found end
      local colon = select(2, body:find("^%s*:", stop + 1))
      at = (colon or stop) + 1
      if depth <= 2 then
        local text = short_text(body, start, stop)
        if colon then
          keys[depth] = text
          has_id = has_id or (depth == 1 and text == "request_id")
        elseif depth == 1 and keys[1] == "request_id" then
          found.request_id = text
        elseif depth == 2 and keys[1] == "user" and keys[2] == "scene" then
          found.scene = text
        end
      end
    end
    if found.scene and found.request_id then return found end
  end
  return found
end

local function is_id(text)
  return text ~= nil and #text >= 1 and #text <= MAX_ID_BYTES and not text:find("[%z\1-\31\127]")
end

local function percent_encoded(text)
  return (text:gsub("[^%w%-_.~]", function(char) return string.format("%%%02X", char:byte()) end))
end

local function add_request_id(handle, body, text)
  local id = handle:headers():get("x-request-id")
  if not is_id(id) or not id:find("^[%w%-_.:/+=]+$") then return end
  local comma = text:find("^%s*{%s*}") and "" or ","
  local changed = text:gsub("{", '{"request_id":"' .. id .. '"' .. comma, 1)
  handle:headers():replace("content-length", body:setBytes(changed))
end

function envoy_on_request(handle)
  local headers = handle:headers()
  if headers:get("x-recgraph-last-resort") then
    headers:replace(":path", "/pools/" .. (headers:get("x-recgraph-scene") or "-"))
    -- Envoy kept the body for the redirect; a GET has none.
    if handle:body(true):length() > 0 then handle:body():setBytes("") end
    handle:headers():remove("content-length")
    return
  end
  if headers:get(":method") ~= "POST" then return end
  local body = handle:body(true)
  -- Waiting for the body ends the life of what was taken from the handle before.
  headers = handle:headers()
  local length = math.min(body:length(), MAX_BYTES)
  local text = length > 0 and body:getBytes(0, length) or ""
  local found = read_fields(text)
  if is_id(found.scene) then headers:replace("x-recgraph-scene", percent_encoded(found.scene)) end
  if is_id(found.request_id) then
    headers:replace("x-request-id", found.request_id)
  elseif found.open and length == body:length() then
    add_request_id(handle, body, text)
  end
end
